"""Weights as small integers with one scale (and zero point) for every block of a row.

A weight is ``scale * (code - zero)``. Blocks lie along the input of the layer; where the row's length is no multiple of
the block's, the last block is shorter. Nothing here knows a runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Grid:
    """Which codes there are.

    Attributes:
        bits: 4 or 8; codes are 0 .. 2^bits - 1.
        group: weights of a row that share a scale.
        symmetric: the zero point is always the middle code, 2^(bits - 1).
    """

    bits: int
    group: int
    symmetric: bool

    @property
    def top(self) -> int:
        """The largest code."""
        return int(2**self.bits - 1)

    @property
    def middle(self) -> int:
        """The zero point of a symmetric grid."""
        return int(2 ** (self.bits - 1))

    def scales_of(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales and zero points (float32, whole numbers) from the range of ``blocks`` (..., group).

        Symmetric: the value of largest magnitude becomes code 0, so that the one code that has no mirror image is
        used. Asymmetric: from the smallest to the largest value, 0 always among them. A block of zeros gets scale 1.
        """
        import torch

        if self.symmetric:
            low, high = blocks.amin(dim=-1), blocks.amax(dim=-1)
            extreme = torch.where(high > -low, high, low)
            scales = -extreme / self.middle
            zeros = torch.full_like(scales, self.middle)
        else:
            low, high = blocks.amin(dim=-1).clamp(max=0), blocks.amax(dim=-1).clamp(min=0)
            scales = (high - low) / self.top
            zeros = torch.round(-low / torch.where(scales == 0, 1.0, scales)).clamp(0, self.top)
        return torch.where(scales == 0, torch.ones_like(scales), scales), zeros

    def codes_of(self, weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        """Nearest codes (float32, whole numbers); ``scales`` and ``zeros`` broadcast against ``weight``."""
        import torch

        return torch.clamp(torch.round(weight / scales) + zeros, 0, self.top)


@dataclass(frozen=True)
class BlockCodes:
    """A quantized (out, in) matrix.

    Attributes:
        codes: uint8 (out, in).
        scales: float32 (out, blocks).
        zeros: uint8 (out, blocks).
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    grid: Grid

    def wide(self) -> torch.Tensor:
        """The float32 (out, in) matrix that the codes stand for."""
        width = self.codes.shape[1]
        scales = self.scales.repeat_interleave(self.grid.group, dim=1)[:, :width]
        zeros = self.zeros.float().repeat_interleave(self.grid.group, dim=1)[:, :width]
        return (self.codes.float() - zeros) * scales


def in_blocks(weight: torch.Tensor, group: int) -> torch.Tensor:
    """(out, in) -> (out, blocks, group) in float32; the last block is filled up with zeros."""
    import torch

    out, width = weight.shape
    blocks = -(-width // group)
    padded = torch.nn.functional.pad(weight.detach().to(torch.float32), (0, blocks * group - width))
    return padded.reshape(out, blocks, group)


def codes_from(blocks: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, width: int, grid: Grid) -> BlockCodes:
    """Nearest codes of ``blocks`` (out, blocks, group) for given scales and zero points (out, blocks)."""
    import torch

    codes = grid.codes_of(blocks, scales.unsqueeze(-1), zeros.unsqueeze(-1))
    return BlockCodes(
        codes=codes.reshape(len(codes), -1)[:, :width].to(torch.uint8).contiguous(),
        scales=scales.to(torch.float32).contiguous(),
        zeros=zeros.to(torch.uint8).contiguous(),
        grid=grid,
    )


def round_to_nearest(weight: torch.Tensor, grid: Grid) -> BlockCodes:
    """Each weight's nearest code; scales and zero points from the range of its block."""
    blocks = in_blocks(weight, grid.group)
    scales, zeros = grid.scales_of(blocks)
    return codes_from(blocks, scales, zeros, weight.shape[1], grid)


def values_per_block(weight: torch.Tensor, group: int, rows: int = 64) -> int:
    """The largest number of distinct values in a block, over ``rows`` rows spread over the matrix."""
    step = max(1, len(weight) // rows)
    blocks = in_blocks(weight[::step][:rows], group).reshape(-1, group)
    ordered = blocks.sort(dim=1).values
    # Values that stand for one code differ by rounding of the float they were converted to.
    apart = (ordered[:, 1:] - ordered[:, :-1]) > 1e-4 * (ordered[:, -1:] - ordered[:, :1]) / 16
    return int((apart.sum(dim=1) + 1).max()) if len(blocks) else 0
