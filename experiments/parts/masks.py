"""Which weights go: masks (True = becomes zero) from scores (small = goes first). Exact counts, ties in order."""

from __future__ import annotations

import torch


def smallest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Mask of the ``count`` smallest of all scores; among equal ones those that come first."""
    mask = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    if count <= 0:
        return mask
    flat = scores.reshape(-1)
    limit = flat.kthvalue(count).values
    below = flat < limit
    ties = (flat == limit).nonzero().reshape(-1)[: count - int(below.sum())]
    below[ties] = True
    return below.reshape(scores.shape)


def smallest_of_rows(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Mask of the ``count`` smallest scores of each row of (rows, columns); among equal ones those that come first."""
    mask = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    order = scores.argsort(dim=1, stable=True)[:, :count]
    return mask.scatter_(1, order, True)


def two_of_four(scores: torch.Tensor) -> torch.Tensor:
    """Mask of the two smallest of every four neighbouring scores of a row; (rows, columns), columns a multiple of 4.

    Source: Mishra et al., Accelerating Sparse Deep Neural Networks, arXiv:2104.08378.
    """
    return smallest_of_rows(scores.reshape(-1, 4), 2).reshape(scores.shape)
