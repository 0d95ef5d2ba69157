"""FP8 of a torch module: swaps linear layers for float8 ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from experiments.parts.fp8_linear import Fp8Linear, narrowed
from experiments.parts.rounding import straight_through
from experiments.protocols import BuildContext
from experiments.records import StepEffect

if TYPE_CHECKING:
    from experiments.parts.linear_layers import LinearLayer


def quantize_module(module: Any, keep: Sequence[str], context: BuildContext) -> tuple[Any, StepEffect]:
    """Swap every linear layer of ``module`` for ``Fp8Linear``, except tied heads and those in ``keep``.

    Raises:
        ExperimentError: ``bad_model`` for non-finite weights, ``no_effect`` if no layer was left to swap,
            ``unsupported`` if a pattern in ``keep`` matches nothing.
    """
    from experiments.parts.finite import require_finite
    from experiments.parts.layer_patterns import matched
    from experiments.parts.linear_layers import linear_layers, swap
    from experiments.parts.summaries import kept_in_words, no_layer_quantized
    from experiments.parts.tied_weights import tied_names

    started = time.monotonic()
    require_finite(module)
    layers, kept = linear_layers(module)
    total = len(layers) + len(kept)
    asked = matched(keep, [layer.name for layer in layers])
    tied = tied_names(module)
    shared = set(tied) | set(tied.values())
    changed = 0
    for number, layer in enumerate(layers):
        out, width = layer.weight.shape
        if layer.name in asked:
            kept[layer.name] = f"asked for by keep: '{asked[layer.name]}'"
        elif f"{layer.name}.weight" in shared:
            kept[layer.name] = "shares its tensor with the embedding; kept wide, tie intact, counted once"
        elif out % 16 or width % 16:
            kept[layer.name] = f"its shape of {out} x {width} is no multiple of 16, which the kernel needs"
        else:
            bias = None if layer.bias is None else layer.bias.detach().to(torch.float32)
            swap(module, layer.name, Fp8Linear(*narrowed(layer.weight), bias))
            changed += 1
        context.progress((number + 1) / len(layers))
    if not changed:
        raise no_layer_quantized("fp8", total, kept)
    return module, StepEffect(
        technique="fp8",
        summary=f"{changed} of {total} linear layers in float8 e4m3{kept_in_words(kept)}; "
        "weights scaled by output channel, activations by token",
        changed=changed,
        of=total,
        kept=kept,
        seconds=time.monotonic() - started,
    )


class Fp8RoundedLinear(torch.nn.Module):
    """What a linear layer computes with float8 weights and activations. It shares the layer's parameters."""

    def __init__(self, layer: LinearLayer) -> None:
        super().__init__()
        self.layer = layer.module
        self._transposed = layer.weight is not layer.module.weight  # Conv1D stores (in, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out) in float32."""
        weight = self.layer.weight.t() if self._transposed else self.layer.weight
        return torch.nn.functional.linear(_rounded(x), _rounded(weight), self.layer.bias)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """Rows of ``x`` (..., in) on the float8 grid, each with its own scale."""
    wide = x.to(torch.float32)
    codes, scales = narrowed(wide.reshape(-1, wide.shape[-1]))
    return straight_through(wide, (codes.to(torch.float32) * scales).reshape(wide.shape))
