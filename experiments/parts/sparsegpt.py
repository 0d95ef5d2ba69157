"""SparseGPT for one layer: prunes column by column and lets the remaining weights make up for what is gone.

Source: Frantar and Alistarh, SparseGPT, arXiv:2301.00774, sections 3.2 to 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from experiments.parts.masks import smallest

#: Damping is raised tenfold until the Hessian can be inverted, at most to this share of its mean diagonal.
LARGEST_DAMPING = 1.0


@dataclass(frozen=True)
class Factor:
    """Upper Cholesky factor (in, in) of the inverse Hessian.

    Attributes:
        damping: what was added to the diagonal, as a share of its mean.
        dead: (in,) bool, channels that were always 0; nothing can be said of their weights.
    """

    upper: torch.Tensor
    damping: float
    dead: torch.Tensor


def inverse_factor(moment: torch.Tensor, damping: float) -> Factor | None:
    """Factor of the inverse of the (in, in) second moment, damped as little as needed; None if none is enough."""
    dead = moment.diagonal() == 0
    wide = moment.double()
    wide.diagonal()[dead] = 1.0
    mean = wide.diagonal().mean()
    while damping <= LARGEST_DAMPING:
        damped = wide.clone()
        damped.diagonal().add_(damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed and bool(upper.isfinite().all()):
                return Factor(upper.float(), damping, dead)
        damping *= 10
    return None


def sparsegpt(weight: torch.Tensor, factor: Factor, amount: float, block: int) -> torch.Tensor:
    """The (out, in) float32 weight with a share ``amount`` of each block of columns at zero, the rest adjusted.

    Weights of dead channels go first: they change nothing that was seen.
    """
    w = weight.detach().float().clone()
    columns = w.shape[1]
    for start in range(0, columns, block):
        end = min(start + block, columns)
        part, f = w[:, start:end].clone(), factor.upper[start:end, start:end]
        scores = (part / f.diagonal()).square()
        scores[:, factor.dead[start:end]] = 0
        mask = smallest(scores, round(amount * scores.numel()))
        errors = torch.zeros_like(part)
        for i in range(end - start):
            errors[:, i] = part[:, i].masked_fill(~mask[:, i], 0) / f[i, i]
            part[:, i].masked_fill_(mask[:, i], 0)
            part[:, i + 1 :].addr_(errors[:, i], f[i, i + 1 :], alpha=-1)
        w[:, start:end] = part
        w[:, end:] -= errors @ factor.upper[start:end, end:]
    return w
