"""Dynamic INT8 of a torch module: swaps linear layers for packed ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind, StepEffect


def quantize_linears(
    module: Any,
    per_channel: bool,
    reduce_range: bool | Literal["auto"],
    keep: Sequence[str],
    context: BuildContext,
) -> tuple[Any, StepEffect]:
    """Swap every linear layer of ``module`` for ``DynamicInt8Linear``, except tied heads and those in ``keep``.

    Raises:
        ExperimentError: ``bad_model`` for non-finite weights, ``no_effect`` if no layer was left to swap,
            ``unsupported`` if a pattern in ``keep`` matches nothing.
    """
    from experiments.parts import int8_range
    from experiments.parts.finite import require_finite
    from experiments.parts.layer_patterns import matched
    from experiments.parts.linear_layers import linear_layers, swap
    from experiments.parts.quantized_linear import DynamicInt8Linear, quantize_weight
    from experiments.parts.tied_weights import tied_names

    started = time.monotonic()
    require_finite(module)
    reduce, why = int8_range.reduce_range(reduce_range, context.isa)
    layers, kept = linear_layers(module)
    asked = matched(keep, [layer.name for layer in layers])
    tied = tied_names(module)
    shared = set(tied) | set(tied.values())
    changed = 0
    for number, layer in enumerate(layers):
        if f"{layer.name}.weight" in shared:
            other = next(o for a, o in _both_ways(tied) if a == f"{layer.name}.weight")
            kept[layer.name] = f"shares its tensor with {other}; kept float, tie intact, counted once"
        elif layer.name in asked:
            kept[layer.name] = f"asked for by keep: '{asked[layer.name]}'"
        else:
            codes, scales = quantize_weight(layer.weight, per_channel)
            swap(module, layer.name, DynamicInt8Linear(codes, scales, layer.bias, reduce))
            changed += 1
        context.progress((number + 1) / len(layers))
    total = len(layers) + sum(1 for name in kept if name not in {layer.name for layer in layers})
    if not changed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(kept.items())[:3]) or "it has none"
        raise ExperimentError(
            FailureKind.NO_EFFECT,
            f"int8-dynamic changed nothing: 0 of {total} linear layers quantized ({reasons})",
            fix="Name fewer layers in keep, or remove int8-dynamic from the recipe.",
        )
    summary = f"{changed} of {total} linear layers quantized{kept_in_words(kept)}; {why}"
    effect = StepEffect(
        technique="int8-dynamic",
        summary=summary,
        changed=changed,
        of=total,
        kept=kept,
        seconds=time.monotonic() - started,
    )
    return module, effect


def kept_in_words(kept: dict[str, str]) -> str:
    """E.g. ``, 1 kept (lm_head: shares its tensor ...)``; only the first is spelled out."""
    if not kept:
        return ""
    name, reason = next(iter(kept.items()))
    more = f", and {len(kept) - 1} more" if len(kept) > 1 else ""
    return f", {len(kept)} kept ({name}: {reason}{more})"


def _both_ways(tied: dict[str, str]) -> list[tuple[str, str]]:
    return [*tied.items(), *((first, alias) for alias, first in tied.items())]
