"""Dynamic INT8 of a torch module: swaps linear layers, and embedding tables where asked, for packed ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.protocols import BuildContext
from experiments.records import StepEffect

if TYPE_CHECKING:
    from experiments.parts.int8_settings import DynamicSettings


def quantize_linears(
    module: Any,
    settings: DynamicSettings,
    keep: Sequence[str],
    context: BuildContext,
    smoothing: Mapping[str, Any] | None = None,
) -> tuple[Any, StepEffect]:
    """Swap every linear layer of ``module`` for ``DynamicInt8Linear``, except tied heads and those in ``keep``.

    ``smoothing``: layer name -> (in,) what its inputs are divided by and its weights multiplied by beforehand.

    Raises:
        ExperimentError: ``bad_model`` for non-finite weights, ``no_effect`` if no layer was left to swap,
            ``unsupported`` if a pattern in ``keep`` matches nothing.
    """
    from experiments.parts import int8_range
    from experiments.parts.finite import require_finite
    from experiments.parts.int8_saturation import saturation_warning
    from experiments.parts.layer_patterns import matched
    from experiments.parts.linear_layers import linear_layers, swap
    from experiments.parts.quantized_linear import DynamicInt8Linear, quantize_weight
    from experiments.parts.summaries import kept_in_words, no_layer_quantized
    from experiments.parts.tied_weights import tied_names

    started = time.monotonic()
    smoothing = smoothing or {}
    require_finite(module)
    reduce, why = int8_range.reduce_range(settings.reduce_range, context.isa)
    layers, kept = linear_layers(module)
    tables = _embeddings(module) if settings.embeddings else {}
    asked = matched(keep, [*(layer.name for layer in layers), *tables])
    tied = tied_names(module)
    shared = set(tied) | set(tied.values())
    changed = 0
    narrow, wide_tables = _narrow_tables(module, tables, asked, tied)
    for number, layer in enumerate(layers):
        if f"{layer.name}.weight" in shared:
            kept[layer.name] = _tie(f"{layer.name}.weight", tied)
        elif layer.name in asked:
            kept[layer.name] = f"asked for by keep: '{asked[layer.name]}'"
        else:
            scale = smoothing.get(layer.name)
            weight = layer.weight if scale is None else layer.weight.to(scale.dtype) * scale
            codes, scales = quantize_weight(weight, settings.per_channel)
            inverse = None if scale is None else 1 / scale
            swap(module, layer.name, DynamicInt8Linear(codes, scales, layer.bias, reduce, inverse))
            changed += 1
        context.progress((number + 1) / len(layers))
    total = len(layers) + sum(1 for name in kept if name not in {layer.name for layer in layers})
    if not changed:
        raise no_layer_quantized(settings.technique, total, kept)
    warning = saturation_warning("torch", reduce)
    effect = StepEffect(
        technique=settings.technique,
        summary=f"{changed} of {total} linear layers quantized{kept_in_words(kept)}; "
        f"{tables_in_words(settings.embeddings, narrow, wide_tables)}; {why}",
        changed=changed,
        of=total,
        kept=kept | wide_tables,
        warnings=(warning,) if warning else (),
        seconds=time.monotonic() - started,
    )
    return module, effect


def tables_in_words(asked: bool, narrow: Sequence[str], kept: Mapping[str, str]) -> str:
    """E.g. '3 of 3 embedding tables stored as int8', or that they were not asked for."""
    from experiments.parts.summaries import kept_in_words

    if not asked:
        return "embeddings kept float"
    total = len(narrow) + len(kept)
    return f"{len(narrow)} of {total} embedding tables stored as int8, one scale a row{kept_in_words(kept)}"


def _embeddings(module: Any) -> dict[str, Any]:
    import torch

    return {name: child for name, child in module.named_modules() if isinstance(child, torch.nn.Embedding)}


def _narrow_tables(
    module: Any, tables: Mapping[str, Any], asked: Mapping[str, str], tied: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Swap embedding tables for 8-bit ones; names of those, and name -> why for the others."""
    import torch

    from experiments.parts.int8_embedding import Int8Embedding
    from experiments.parts.linear_layers import swap
    from experiments.parts.quantized_linear import quantize_weight

    shared = set(tied) | set(tied.values())
    narrow, kept = [], {}
    for name, table in tables.items():
        if f"{name}.weight" in shared:
            kept[name] = _tie(f"{name}.weight", tied)
        elif name in asked:
            kept[name] = f"asked for by keep: '{asked[name]}'"
        elif type(table) is not torch.nn.Embedding or table.max_norm is not None:
            kept[name] = f"a {type(table).__name__} does more than look up rows"
        else:
            codes, scales = quantize_weight(table.weight, per_channel=True)
            swap(module, name, Int8Embedding(codes, scales.unsqueeze(1), table.weight.dtype))
            narrow.append(name)
    return narrow, kept


def _tie(name: str, tied: Mapping[str, str]) -> str:
    others = [first for alias, first in tied.items() if alias == name]
    others += [alias for alias, first in tied.items() if first == name]
    return f"shares its tensor with {others[0]}; kept float, tie intact, counted once"
