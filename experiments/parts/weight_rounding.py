"""A linear layer with blockwise rounded weights that lets gradients pass as if they were exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from experiments.parts.block_codes import Grid, round_to_nearest
from experiments.parts.rounding import straight_through

if TYPE_CHECKING:
    from experiments.parts.linear_layers import LinearLayer


class BlockRoundedLinear(torch.nn.Module):
    """What a linear layer computes with weights on ``grid`` and float inputs. It shares the layer's parameters."""

    def __init__(self, layer: LinearLayer, grid: Grid) -> None:
        super().__init__()
        self.layer = layer.module
        self._transposed = layer.weight is not layer.module.weight  # Conv1D stores (in, out)
        self._grid = grid

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out) in float32."""
        weight = self.layer.weight.t() if self._transposed else self.layer.weight
        wide = weight.to(torch.float32)
        narrow = straight_through(wide, round_to_nearest(wide, self._grid).wide())
        return torch.nn.functional.linear(x, narrow, self.layer.bias)
