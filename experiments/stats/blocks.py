"""Percentiles of samples that come in timed blocks, with intervals that allow for blocks differing from each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from experiments.records import Interval
from experiments.stats.bootstrap import RESAMPLES, Estimate
from experiments.stats.distributions import student_quantile
from experiments.stats.percentiles import Samples, percentile, percentile_interval
from experiments.stats.undefined import Undefined

#: Resampled percentiles are found among at most this many order statistics (an error of at most 1/65,536 in rank).
GRID = 65_536


def block_percentile(blocks: Sequence[Samples], p: float, seed: int) -> Estimate | Undefined:
    """Percentile ``p`` of the pooled positive samples of all blocks, with a 95 % interval.

    Latencies within a block are alike (clock, cache, neighbours), so an interval that takes all samples for
    independent is too narrow: with 3 % between blocks it held the true median in 67 to 82 % of synthetic runs. Hence
    the interval is the hull of two: Student's t with the standard deviation of the log percentile over resampled
    blocks (good for the body), and two order statistics (good for the tail, where few blocks say little).

    Returns:
        The estimate; :class:`Insufficient` if the tail needs more samples than there are.
    """
    data = [np.asarray(block, dtype=np.float64) for block in blocks]
    data = [block for block in data if block.size]
    pooled = np.concatenate(data) if data else np.empty(0)
    value = percentile(pooled, p)
    if isinstance(value, Undefined):
        return value
    order = percentile_interval(pooled, p)
    if len(data) < 2 or pooled.min() <= 0:
        return Estimate(value, order, int(pooled.size))
    half = student_quantile(0.975, len(data) - 1) * float(
        np.log(resampled_percentiles(data, resampled_weights(len(data), seed), p)).std(ddof=1)
    )
    low, high = value * math.exp(-half), value * math.exp(half)
    method = f"block bootstrap t, {len(data)} blocks"
    if order is not None:
        low, high = min(low, order.low), max(high, order.high)
        method += f", widened to {order.method}" if (low, high) == (order.low, order.high) else " and order statistics"
    return Estimate(value, Interval(low=low, high=high, method=method), int(pooled.size))


def resampled_weights(n: int, seed: int, resamples: int = RESAMPLES) -> npt.NDArray[np.int64]:
    """How often each of ``n`` blocks is in each resample: (resamples, n)."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)


def resampled_percentiles(
    blocks: Sequence[npt.NDArray[np.float64]], weights: npt.NDArray[np.int64], p: float
) -> npt.NDArray[np.float64]:
    """Percentile ``p`` of the pooled samples of each resample: (resamples,).

    ``weights`` (resamples, blocks) says how often each block is in a resample. Instead of pooling and sorting every
    resample, all of them search the common sorted samples at once by bisection on their weighted counts.
    """
    every = np.concatenate(blocks)
    pooled = np.sort(every)
    grid = np.unique(pooled[np.linspace(0, pooled.size - 1, min(pooled.size, GRID)).astype(np.int64)])
    sizes = np.array([block.size for block in blocks], dtype=np.int64)
    where = np.searchsorted(grid, every)
    owner = np.repeat(np.arange(len(blocks)), sizes)
    counts = np.bincount(where * len(blocks) + owner, minlength=grid.size * len(blocks))
    below = counts.reshape(grid.size, len(blocks)).cumsum(axis=0)  # (grid, block): samples <= grid value

    def order_statistic(rank: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        low = np.zeros(len(weights), dtype=np.int64)
        high = np.full(len(weights), grid.size - 1)
        while (low < high).any():
            middle = (low + high) // 2
            enough = np.einsum("rb,rb->r", below[middle], weights) >= rank
            high = np.where(enough, middle, high)
            low = np.where(enough, low, middle + 1)
        return np.asarray(grid[low])

    position = (weights @ sizes - 1) * (p / 100)  # Hyndman & Fan type 7, from 0
    lower = np.floor(position).astype(np.int64)
    first, second = order_statistic(lower + 1), order_statistic(np.ceil(position).astype(np.int64) + 1)
    return np.asarray(first + (second - first) * (position - lower))
