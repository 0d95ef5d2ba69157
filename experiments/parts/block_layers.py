"""The linear layers that pruning works on: those of the repeated blocks, not embeddings, poolers or output heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.parts.layer_patterns import matched
from experiments.parts.linear_layers import LinearLayer, linear_layers
from experiments.parts.tied_weights import tied_names


def block_layers(module: Any, keep: Sequence[str]) -> tuple[list[LinearLayer], dict[str, str]]:
    """Layers to prune, and name -> why for every linear layer that is left alone.

    A model without repeated blocks gives all its linear layers but the last, which is its output head. A weight that
    shares its tensor with another name is left alone: pruning it would prune an embedding.

    Raises:
        ExperimentError: ``unsupported`` if a pattern in ``keep`` names no linear layer.
    """
    layers, kept = linear_layers(module)
    asked = matched(keep, [layer.name for layer in layers])
    inside = _inside_blocks(module)
    outside = {layer.name for layer in layers if layer.name not in inside} if inside else {layers[-1].name}
    tied = tied_names(module)
    shared = {**tied, **{first: alias for alias, first in tied.items()}}
    chosen = []
    for layer in layers:
        if layer.name in asked:
            kept[layer.name] = f"asked for by keep: '{asked[layer.name]}'"
        elif (other := shared.get(f"{layer.name}.weight")) is not None:
            kept[layer.name] = f"shares its tensor with {other}"
        elif layer.name in outside:
            kept[layer.name] = "not in a repeated block"
        else:
            chosen.append(layer)
    return chosen, kept


def _inside_blocks(module: Any) -> frozenset[str]:
    """Names of all modules that lie in a list of repeated blocks."""
    import torch

    lists = [f"{name}." for name, child in module.named_modules() if isinstance(child, torch.nn.ModuleList)]
    return (
        frozenset(name for name, _ in module.named_modules() if name.startswith(tuple(lists))) if lists else frozenset()
    )
