"""GPTQ: rounding one input channel after the other, the error of each carried to those still open.

Frantar et al., GPTQ, arXiv:2210.17323.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.parts.block_codes import BlockCodes, Grid, in_blocks, round_to_nearest

if TYPE_CHECKING:
    import torch

#: Columns that are worked on together before their errors are carried on to the rest.
COLUMNS = 128
#: Damping is raised tenfold until the factorisation holds, up to this share of the mean diagonal.
MOST_DAMPING = 10.0


@dataclass(frozen=True)
class Compensated:
    """What GPTQ made of one matrix.

    Attributes:
        damping: share of the Hessian's mean diagonal that was added to it; None if it was not used.
        dead: input channels that were 0 on all calibration rows: their weights are rounded to nearest.
        fallback: why the matrix was rounded to nearest instead, or None.
    """

    codes: BlockCodes
    damping: float | None
    dead: int
    fallback: str | None = None


def compensated(
    weight: torch.Tensor, moment: torch.Tensor, grid: Grid, *, damping: float = 0.01, act_order: bool = False
) -> Compensated:
    """Codes of ``weight`` (out, in) that keep ``X W^T`` close for inputs with second moment ``moment`` (in, in).

    Args:
        damping: share of the mean diagonal that is added to the diagonal, at least.
        act_order: take the channels with the largest inputs first; scales then come from the weights as they were.

    Rounding to nearest is kept, and ``fallback`` says why, where the moment can't be factorised or where the
    compensated codes fit the calibration inputs worse than it does.
    """
    import torch

    nearest = round_to_nearest(weight, grid)
    dead_channels = moment.diagonal() == 0
    dead = int(dead_channels.sum())
    if not bool(moment.isfinite().all()):
        return Compensated(nearest, None, dead, "its calibration inputs have no finite second moment")
    if dead == len(moment):
        return Compensated(nearest, None, dead, "all of its calibration inputs are 0")
    hessian = moment.to(torch.float64)
    hessian.diagonal()[dead_channels] = hessian.diagonal().mean()
    largest_first = torch.argsort(hessian.diagonal(), descending=True, stable=True)
    order = largest_first if act_order else torch.arange(len(hessian))
    factor, used = _inverse_factor(hessian[order][:, order], damping)
    if factor is None:
        return Compensated(nearest, None, dead, f"its Hessian can't be factorised, even damped by {used:g}")
    codes = _rounded(weight, factor, order, grid, static=act_order)
    if _loss(weight, codes, moment) > _loss(weight, nearest, moment):
        return Compensated(nearest, used, dead, "compensation fits its calibration inputs worse than plain rounding")
    return Compensated(codes, used, dead)


def _inverse_factor(hessian: torch.Tensor, damping: float) -> tuple[torch.Tensor | None, float]:
    """Upper Cholesky factor of the inverse, float32, and the damping with which it could be made."""
    import torch

    mean = hessian.diagonal().mean()
    while True:
        damped = hessian + torch.eye(len(hessian), dtype=hessian.dtype) * (damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not int(failed):
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not int(failed) and bool(upper.isfinite().all()):
                return upper.to(torch.float32), damping
        if damping >= MOST_DAMPING:
            return None, damping
        damping = max(damping * 10, 1e-4)


def _rounded(
    weight: torch.Tensor, factor: torch.Tensor, order: torch.Tensor, grid: Grid, *, static: bool
) -> BlockCodes:
    """The loop over channels in ``order``; ``static``: scales from the weights as they were before the first."""
    import torch

    width, group = weight.shape[1], grid.group
    blocks = in_blocks(weight, group)
    scales, zeros = grid.scales_of(blocks)
    open_weights = weight.detach().to(torch.float32)[:, order].clone()
    codes = torch.empty(weight.shape, dtype=torch.uint8)
    for first in range(0, width, COLUMNS):
        last = min(first + COLUMNS, width)
        errors = torch.zeros(len(weight), last - first)
        for column in range(first, last):
            channel = int(order[column])
            block = channel // group
            if not static and channel % group == 0:
                # Columns of this block beyond `last` have not had this chunk's errors yet: carried here for the scale.
                now = open_weights[:, column : column + group].clone()
                if column + group > last:
                    now[:, last - column :] -= errors[:, : column - first] @ factor[first:column, last : column + group]
                scales[:, block], zeros[:, block] = grid.scales_of(in_blocks(now, group).squeeze(1))
            w = open_weights[:, column]
            code = grid.codes_of(w, scales[:, block], zeros[:, block])
            codes[:, channel] = code.to(torch.uint8)
            error = (w - (code - zeros[:, block]) * scales[:, block]) / factor[column, column]
            open_weights[:, column + 1 : last] -= error.unsqueeze(1) * factor[column, column + 1 : last].unsqueeze(0)
            errors[:, column - first] = error
        open_weights[:, last:] -= errors @ factor[first:last, last:]
    return BlockCodes(codes=codes, scales=scales, zeros=zeros.to(torch.uint8), grid=grid)


def _loss(weight: torch.Tensor, codes: BlockCodes, moment: torch.Tensor) -> float:
    """Mean squared difference of the layer's outputs over the calibration inputs."""
    return output_error(weight.detach().float() - codes.wide(), moment)


def output_error(difference: torch.Tensor, moment: torch.Tensor) -> float:
    """E ||x D^T||^2 for a difference D (out, in) of weights and inputs with second moment ``moment``."""
    return float(((difference @ moment) * difference).sum(dtype=difference.dtype))
