"""The speed-up: a ratio of medians from paired blocks, with an interval that keeps its promise for few pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from experiments.records import Interval
from experiments.stats.bootstrap import RESAMPLES, expanded_bounds
from experiments.stats.distributions import student_quantile
from experiments.stats.percentiles import Samples
from experiments.stats.undefined import Undefined

#: Below this many pairs even the widest bootstrap percentile interval covers too little; Student's t is used.
FEW_PAIRS = 8
#: Medians are found among at most this many order statistics of a side (an error of at most 1/65,536 in rank).
GRID = 65_536


@dataclass(frozen=True)
class Ratio:
    """median(baseline) / median(candidate): above 1 the candidate is faster.

    ``interval`` is None if there are fewer than 2 pairs.
    """

    value: float
    interval: Interval | None
    n_pairs: int


Verdict = Literal["faster", "slower", "not distinguishable"]


def verdict(interval: Interval | None) -> Verdict:
    """What a speed-up's interval allows to be said; without one, or if it holds 1, nothing."""
    if interval is None or interval.contains(1.0):
        return "not distinguishable"
    return "faster" if interval.low > 1 else "slower"


def ratio_of_medians(
    pairs: Sequence[tuple[Samples, Samples]], seed: int, resamples: int = RESAMPLES, confidence: float = 0.95
) -> Ratio | Undefined:
    """Speed-up of a candidate over its baseline from interleaved blocks.

    Args:
        pairs: (baseline block samples, candidate block samples) of each pair, all positive, in one unit.
        seed: of the resampling; the same pairs and seed give the same interval.

    The interval resamples whole pairs with replacement, so that drift over the run, which both blocks of a pair
    share, cancels, and samples within a block need not be independent. Percentiles are expanded for few pairs
    (Hesterberg 2015, "What teachers should know about the bootstrap", section 3.3); below 8 pairs the interval is
    Student's t on the log ratios of block medians, centred on the value.

    Returns:
        The ratio, or :class:`Undefined` if a side has no samples, or samples that are not positive numbers.
    """
    blocks = [(np.asarray(b, dtype=np.float64), np.asarray(c, dtype=np.float64)) for b, c in pairs]
    blocks = [(b, c) for b, c in blocks if b.size and c.size]
    if not blocks:
        return Undefined("no pair of blocks was timed")
    baseline, candidate = [b for b, _ in blocks], [c for _, c in blocks]
    if not all(np.isfinite(x).all() and (x > 0).all() for x in (*baseline, *candidate)):
        return Undefined("some latencies are not positive numbers")
    n = len(blocks)
    value = float(np.median(np.concatenate(baseline)) / np.median(np.concatenate(candidate)))
    if n < 2:
        return Ratio(value, None, n)
    if n < FEW_PAIRS:
        logs = np.array([math.log(np.median(b) / np.median(c)) for b, c in blocks])
        half = student_quantile(0.5 + confidence / 2, n - 1) * float(logs.std(ddof=1)) / math.sqrt(n)
        low, high, method = value * math.exp(-half), value * math.exp(half), "Student t on log block ratios"
    else:
        rng = np.random.default_rng(seed)
        weights = rng.multinomial(n, np.full(n, 1 / n), size=resamples)
        ratios = _resampled_medians(baseline, weights) / _resampled_medians(candidate, weights)
        low, high = expanded_bounds(ratios, n, confidence)
        method = "paired block bootstrap, expanded percentiles"
    return Ratio(value, Interval(low=low, high=high, confidence=confidence, method=f"{method}, {n} pairs"), n)


def _resampled_medians(
    blocks: list[npt.NDArray[np.float64]], weights: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Median of the pooled samples of each resample.

    ``weights`` (resamples, blocks) says how often each block is in a resample. Instead of pooling and sorting every
    resample, all of them search the common sorted samples at once by bisection on their weighted counts.
    """
    pooled = np.sort(np.concatenate(blocks))
    grid = np.unique(pooled[np.linspace(0, pooled.size - 1, min(pooled.size, GRID)).astype(np.int64)])
    sizes = np.array([block.size for block in blocks], dtype=np.int64)
    where = np.searchsorted(grid, np.concatenate(blocks))
    owner = np.repeat(np.arange(len(blocks)), sizes)
    counts = np.bincount(where * len(blocks) + owner, minlength=grid.size * len(blocks))
    below = counts.reshape(grid.size, len(blocks)).cumsum(axis=0)  # (grid, block): samples <= grid value
    totals = weights @ sizes

    def order_statistic(rank: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        low = np.zeros(len(weights), dtype=np.int64)
        high = np.full(len(weights), grid.size - 1)
        while (low < high).any():
            middle = (low + high) // 2
            enough = np.einsum("rb,rb->r", below[middle], weights) >= rank
            high = np.where(enough, middle, high)
            low = np.where(enough, low, middle + 1)
        return grid[low]

    return (order_statistic((totals + 1) // 2) + order_statistic(totals // 2 + 1)) / 2
