"""The linear layers of a model, whatever class they are written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LinearLayer:
    """One layer that computes ``x W^T + b``.

    Attributes:
        name: dotted path of the module.
        weight: (out, in), transposed where the class stores (in, out) as transformers' ``Conv1D`` does (FC-013).
    """

    name: str
    module: Any
    weight: Any
    bias: Any


def linear_layers(module: Any) -> tuple[list[LinearLayer], dict[str, str]]:
    """All layers that can be swapped, and name -> why for linear layers whose forward is never called."""
    import torch
    from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
    from transformers.pytorch_utils import Conv1D

    layers: list[LinearLayer] = []
    unswappable: dict[str, str] = {}
    for name, child in module.named_modules():
        if isinstance(child, NonDynamicallyQuantizableLinear):
            unswappable[name] = "nn.MultiheadAttention reads its weight directly"
        elif isinstance(child, torch.nn.Linear):
            layers.append(LinearLayer(name, child, child.weight, child.bias))
        elif isinstance(child, Conv1D):
            layers.append(LinearLayer(name, child, child.weight.t(), child.bias))
    return layers, unswappable


def swap(module: Any, name: str, replacement: Any) -> None:
    """Put ``replacement`` at the dotted path ``name`` of ``module``."""
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, replacement)
