"""Rounding to integers that is computed in floating point and lets gradients pass as if it were the identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from experiments.parts.linear_layers import LinearLayer

#: Largest magnitude of an 8-bit weight code; -128 is left out so that the range is symmetric.
QMAX = 127


def straight_through(exact: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """The value of ``rounded`` with the gradient of ``exact`` (Bengio et al., arXiv:1308.3432)."""
    return exact + (rounded - exact).detach()


def rounded_weight(weight: torch.Tensor, per_channel: bool) -> torch.Tensor:
    """(out, in) weights on a symmetric 8-bit grid, one scale a row or one for all."""
    wide = weight.to(torch.float32)
    largest = wide.detach().abs().amax(dim=1, keepdim=True) if per_channel else wide.detach().abs().amax()
    scales = torch.where(largest > 0, largest / QMAX, torch.ones_like(largest))
    codes = torch.clamp(torch.round(wide.detach() / scales), -QMAX, QMAX)
    return straight_through(wide, codes * scales)


def rounded_activation(x: torch.Tensor, bits: int) -> torch.Tensor:
    """``x`` on an asymmetric grid of ``2 ** bits`` levels between its own smallest and largest value (0 included)."""
    low = min(float(x.detach().min()), 0.0)
    high = max(float(x.detach().max()), 0.0)
    levels = 2**bits - 1
    scale = (high - low) / levels or 1.0
    zero = round(-low / scale)
    codes = torch.clamp(torch.round(x.detach() / scale) + zero, 0, levels)
    return straight_through(x, (codes - zero) * scale)


class RoundedLinear(torch.nn.Module):
    """What a linear layer computes with 8-bit weights and dynamically quantized activations.

    It shares the layer's own parameters: what is trained through it is the layer.
    """

    def __init__(self, layer: LinearLayer, *, per_channel: bool, activation_bits: int) -> None:
        super().__init__()
        self.layer = layer.module
        self._transposed = layer.weight is not layer.module.weight  # Conv1D stores (in, out)
        self._per_channel = per_channel
        self._bits = activation_bits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out) in float32."""
        weight = self.layer.weight.t() if self._transposed else self.layer.weight
        narrow = rounded_weight(weight, self._per_channel)
        return torch.nn.functional.linear(rounded_activation(x, self._bits), narrow, self.layer.bias)
