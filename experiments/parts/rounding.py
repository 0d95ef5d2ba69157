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


def rounded_activation(x: torch.Tensor, bits: int, percentile: float = 100.0) -> torch.Tensor:
    """``x`` on an asymmetric grid of ``2 ** bits`` levels between its own smallest and largest value (0 included).

    With a ``percentile`` below 100, that share of the values decides the ends, and what lies beyond is clipped.
    """
    low, high = _ends(x.detach(), percentile)
    low, high = min(low, 0.0), max(high, 0.0)
    levels = 2**bits - 1
    scale = (high - low) / levels or 1.0
    zero = round(-low / scale)
    codes = torch.clamp(torch.round(x.detach() / scale) + zero, 0, levels)
    return straight_through(x, (codes - zero) * scale)


def smoothing(largest: torch.Tensor, weight: torch.Tensor, alpha: float) -> torch.Tensor:
    """What to divide each input channel of a product by, and to multiply its weights by: float32 (in,), all > 0.

    ``s_j = max|x_j| ** alpha / max|w_j| ** (1 - alpha)`` (Xiao et al., SmoothQuant, arXiv:2211.10438, equation 4). A
    channel that is always zero, or that no weight reads, is left alone.

    Args:
        largest: (in,) largest magnitude of each input channel.
        weight: (out, in) of all layers that read these inputs.
    """
    inputs, weights = largest.to(torch.float32), weight.detach().to(torch.float32).abs().amax(dim=0)
    alive = (inputs > 0) & (weights > 0)
    one = torch.ones_like(inputs)
    scale = torch.where(alive, inputs, one) ** alpha / torch.where(alive, weights, one) ** (1 - alpha)
    return torch.where(alive, scale.clamp(min=1e-5), one)


def _ends(x: torch.Tensor, percentile: float) -> tuple[float, float]:
    if percentile >= 100:
        return float(x.min()), float(x.max())
    flat = x.reshape(-1).to(torch.float32)
    flat = flat[:: -(-flat.numel() // 1_000_000)]
    cut = (100 - percentile) / 200
    low, high = torch.quantile(flat, torch.tensor([cut, 1 - cut], dtype=torch.float32)).tolist()
    return low, high


class RoundedLinear(torch.nn.Module):
    """What a linear layer computes with 8-bit weights and rounded activations.

    It shares the layer's own parameters: what is trained through it is the layer.

    Args:
        layer: the layer.
        per_channel: one weight scale a row instead of one for all.
        activation_bits: levels of the inputs, as a power of two.
        percentile: share of the inputs that their range covers.
        alpha: how much of the inputs' outliers is moved into the weights first; None: nothing.
    """

    def __init__(
        self,
        layer: LinearLayer,
        *,
        per_channel: bool,
        activation_bits: int,
        percentile: float = 100.0,
        alpha: float | None = None,
    ) -> None:
        super().__init__()
        self.layer = layer.module
        self._transposed = layer.weight is not layer.module.weight  # Conv1D stores (in, out)
        self._per_channel = per_channel
        self._bits = activation_bits
        self._percentile = percentile
        self._alpha = alpha

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out) in float32."""
        weight = self.layer.weight.t() if self._transposed else self.layer.weight
        if self._alpha is not None:
            scale = smoothing(x.detach().abs().reshape(-1, x.shape[-1]).amax(dim=0), weight, self._alpha)
            x, weight = x / scale, weight * scale
        narrow = rounded_weight(weight, self._per_channel)
        rounded = rounded_activation(x, self._bits, self._percentile)
        return torch.nn.functional.linear(rounded, narrow, self.layer.bias)
