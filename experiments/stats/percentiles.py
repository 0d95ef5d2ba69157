"""Percentiles with the number of samples each needs, and distribution-free intervals for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from experiments.records import Interval
from experiments.stats.distributions import binomial_cdf
from experiments.stats.undefined import Insufficient, Undefined

Samples = Sequence[float] | npt.NDArray[np.floating] | npt.NDArray[np.integer]

#: How sure the minimum sample sizes make us, as in MLPerf LoadGen.
CONFIDENCE = 0.99


@cache
def percentile_needs(p: float, confidence: float = CONFIDENCE) -> int:
    """Samples that percentile ``p`` (in percent, 0 < p < 100) needs to be said.

    The smallest n for which at most one of n samples beyond the true percentile is so unlikely (<= 1 - confidence)
    that having discarded one still bounds it: q^n + n (1 - q) q^(n-1) <= 1 - confidence with q = p / 100.
    Gives 64 for p90, 130 for p95, 662 for p99 and 6,636 for p99.9.

    Source: MLPerf Inference LoadGen, early stopping (binomial test with tolerance 0 and one over-latency query).
    """
    if not 0 < p < 100:
        raise ValueError(f"a percentile lies between 0 and 100, not at {p}")
    q = max(p, 100 - p) / 100  # a low percentile is as hard as its mirror image

    def chance(n: int) -> float:
        return float(q**n + n * (1 - q) * q ** (n - 1))

    low, high = 1, 2
    while chance(high) > 1 - confidence:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if chance(middle) > 1 - confidence else (low, middle)
    return high


def percentile(samples: Samples, p: float) -> float | Undefined:
    """Percentile ``p`` of ``samples`` by linear interpolation of order statistics (Hyndman & Fan 1996, type 7).

    A tail (p != 50) needs :func:`percentile_needs` samples; the median is no tail, needs one sample, and shows its
    uncertainty by its interval.

    Returns:
        The value, or :class:`Insufficient`, or :class:`Undefined` if a sample is not finite.
    """
    values = np.asarray(samples, dtype=np.float64)
    needed = 1 if p == 50 else percentile_needs(p)
    if values.size < needed:
        return Insufficient(values.size, needed)
    if not np.isfinite(values).all():
        return Undefined("some samples are not finite")
    return float(np.percentile(values, p))


def percentile_interval(samples: Samples, p: float, confidence: float = 0.95) -> Interval | None:
    """Distribution-free interval for percentile ``p`` between two order statistics.

    The true percentile lies in [x(l), x(u)] with probability P(l <= B < u) where B ~ Bin(n, p/100). Assumes
    independent samples.

    Source: David & Nagaraja, Order Statistics, 3rd ed., section 7.1.

    Returns:
        None if there are too few samples for such an interval (fewer than 6 for the median at 95 %).
    """
    values = np.sort(np.asarray(samples, dtype=np.float64))
    n, q, tail = values.size, p / 100, (1 - confidence) / 2
    if n == 0 or not np.isfinite(values).all():
        return None
    low = _largest(0, n, lambda k: binomial_cdf(k - 1, n, q) <= tail)
    high = n + 1 - _largest(0, n, lambda k: 1 - binomial_cdf(n - k, n, q) <= tail)
    if low < 1 or high > n:
        return None
    return Interval(
        low=float(values[low - 1]),
        high=float(values[high - 1]),
        confidence=confidence,
        method=f"order statistics {low:,} and {high:,} of {n:,}",
    )


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest k in [low, high] for which ``holds(k)``; it holds at ``low`` and is monotone."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
