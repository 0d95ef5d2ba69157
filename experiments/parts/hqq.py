"""Half-quadratic quantization: grids that fit a heavy-tailed error, without data (Badri & Shaji, HQQ, 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.parts.block_codes import BlockCodes, Grid, codes_from, in_blocks

if TYPE_CHECKING:
    import torch

#: The method's own settings: the norm's exponent, the penalty and its growth, the number of rounds.
NORM, PENALTY, GROWTH, ROUNDS = 0.7, 10.0, 1.01, 20


def half_quadratic(weight: torch.Tensor, grid: Grid) -> BlockCodes:
    """Alternate between a sparse error (shrinkage for an l_p norm, p = 0.7) and the grid that fits the rest.

    Zero points are whole numbers here, since kernels hold them as codes; what that loses, the scale regains: it is
    fitted to the same target. Of all rounds, each block keeps the grid with the smallest l_p error, plain rounding's
    included, so no block gets worse than by rounding to nearest.
    """
    import torch

    blocks = in_blocks(weight, grid.group)
    scales, zeros = (found.unsqueeze(-1) for found in grid.scales_of(blocks))
    best_scales, best_zeros = scales.clone(), zeros.clone()
    smallest = _error(blocks, grid, scales, zeros)
    penalty = PENALTY
    for _ in range(ROUNDS):
        codes = grid.codes_of(blocks, scales, zeros)
        target = blocks - _sparse(blocks - (codes - zeros) * scales, penalty)
        if not grid.symmetric:
            zeros = (codes - target / scales).mean(dim=-1, keepdim=True).round().clamp(0, grid.top)
        offsets = codes - zeros
        power = offsets.square().sum(dim=-1, keepdim=True)
        fitted = (target * offsets).sum(dim=-1, keepdim=True) / power.clamp(min=1)
        scales = torch.where((power > 0) & (fitted != 0), fitted, scales)
        penalty *= GROWTH
        found = _error(blocks, grid, scales, zeros)
        better = found < smallest
        best_scales = torch.where(better, scales, best_scales)
        best_zeros = torch.where(better, zeros, best_zeros)
        smallest = torch.where(better, found, smallest)
    return codes_from(blocks, best_scales.squeeze(-1), best_zeros.squeeze(-1), weight.shape[1], grid)


def _sparse(error: torch.Tensor, penalty: float) -> torch.Tensor:
    """The part of ``error`` that is taken for outliers: generalised soft thresholding."""
    import torch

    shrunk = (error.abs() - error.abs().pow(NORM - 1) / penalty).clamp(min=0)
    return torch.where(error == 0, 0.0, error.sign() * shrunk)


def _error(blocks: torch.Tensor, grid: Grid, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Sum of |error|^p of each block, (out, blocks, 1)."""
    codes = grid.codes_of(blocks, scales, zeros)
    return (blocks - (codes - zeros) * scales).abs().pow(NORM).sum(dim=-1, keepdim=True)
