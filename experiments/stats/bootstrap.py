"""Means and perplexities with intervals from resampling whole documents, windows or examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.records import Interval
from experiments.stats.distributions import normal_cdf, student_quantile
from experiments.stats.percentiles import Samples
from experiments.stats.undefined import Undefined

RESAMPLES = 2_000
#: Rows of resampling counts held at a time.
_CHUNK = 4_000_000


@dataclass(frozen=True)
class Estimate:
    """A value, its interval (None if there are fewer than 2 units to resample) and the number of units."""

    value: float
    interval: Interval | None
    n: int


def expanded_bounds(resampled: npt.NDArray[np.float64], n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile bounds of a bootstrap distribution, expanded for a sample of only ``n`` >= 2 units.

    The plain percentile interval is too narrow by about sqrt((n - 1)/n) and by the normal instead of the t quantile;
    its tail probability is replaced by Phi(-sqrt(n / (n - 1)) t).

    Source: Hesterberg (2015), "What teachers should know about the bootstrap", The American Statistician 69(4).
    """
    t = student_quantile(0.5 + confidence / 2, n - 1)
    tail = normal_cdf(-math.sqrt(n / (n - 1)) * t)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)


def windows(total: int, lengths: Sequence[int] | None) -> npt.NDArray[np.int64]:
    """Window number of each of ``total`` tokens, for resampling whole windows.

    ``lengths`` are the scored tokens of each document or window in order. Without them, or if they do not add up to
    ``total``, runs of about sqrt(total) neighbouring tokens are the windows (Kuensch 1989).
    """
    if lengths is None or sum(lengths) != total:
        size = max(1, math.isqrt(total))
        lengths = [size] * (total // size) + ([total % size] if total % size else [])
    return np.repeat(np.arange(len(lengths)), np.asarray(lengths, dtype=np.int64))


def mean(values: Samples, units: npt.NDArray[np.int64] | None = None, seed: int = 0) -> Estimate | Undefined:
    """Mean of ``values`` with a 95 % interval.

    ``units`` gives the document or window of each value (default: every value is its own unit); whole units are
    resampled, because neighbours are alike. Without units the interval is Student's t.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return Undefined("no values")
    if not np.isfinite(data).all():
        return Undefined(f"{int((~np.isfinite(data)).sum()):,} of {data.size:,} values are not finite")
    value = float(data.mean())
    if units is not None:
        sums, sizes = _totals(data, units), _totals(np.ones_like(data), units)
        if len(sums) < 2:
            return Estimate(value, None, len(sums))
        low, high = expanded_bounds(_resampled_mean(sums, sizes, seed), len(sums))
        return Estimate(value, _interval(low, high, f"bootstrap over {len(sums):,} windows"), len(sums))
    if data.size < 2:
        return Estimate(value, None, 1)
    half = student_quantile(0.975, data.size - 1) * float(data.std(ddof=1)) / math.sqrt(data.size)
    return Estimate(value, _interval(value - half, value + half, f"Student t, {data.size:,} values"), data.size)


def paired_difference(candidate: Samples, baseline: Samples, seed: int = 0) -> Estimate | Undefined:
    """mean(candidate) - mean(baseline) over the same examples, with a 95 % paired bootstrap interval.

    Args:
        candidate, baseline: one number per example, in the same order.
    """
    difference = np.asarray(candidate, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    if difference.size == 0:
        return Undefined("no values")
    if not np.isfinite(difference).all():
        return Undefined("some values are not finite")
    value = float(difference.mean())
    if difference.size < 2:
        return Estimate(value, None, 1)
    # Equal differences are interchangeable, so only their counts are drawn: cheap for scores of right and wrong.
    levels, counts = np.unique(difference, return_counts=True)
    resampled = _resampled_mean(levels * 1.0, np.ones_like(levels), seed, counts)
    low, high = expanded_bounds(resampled, difference.size)
    return Estimate(
        value, _interval(low, high, f"paired bootstrap, {difference.size:,} examples"), int(difference.size)
    )


def ratio_of_sums(numerators: Samples, denominators: Samples, seed: int = 0) -> Estimate | Undefined:
    """sum(numerators) / sum(denominators) over blocks, e.g. samples per second, with a 95 % interval over blocks."""
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if below.size == 0 or not below.sum() > 0:
        return Undefined("nothing was timed")
    value = float(above.sum() / below.sum())
    if below.size < 2:
        return Estimate(value, None, 1)
    low, high = expanded_bounds(_resampled_mean(above, below, seed), below.size)
    return Estimate(value, _interval(low, high, f"bootstrap over {below.size} blocks"), int(below.size))


def perplexity(log_probs: Samples, lengths: Sequence[int] | None = None, seed: int = 0) -> Estimate | Undefined:
    """exp(-mean log probability) of all scored tokens (nats), with an interval over whole windows.

    ``lengths``: scored tokens of each window or document in order (see :func:`windows`).
    """
    data = -np.asarray(log_probs, dtype=np.float64)
    nats = mean(data, windows(data.size, lengths), seed)
    return nats if isinstance(nats, Undefined) else _exponential(nats)


def perplexity_ratio(
    candidate: Samples, baseline: Samples, lengths: Sequence[int] | None = None, seed: int = 0
) -> Estimate | Undefined:
    """perplexity(candidate) / perplexity(baseline) on the same tokens, with a paired interval over whole windows."""
    ours, theirs = np.asarray(candidate, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if ours.shape != theirs.shape:
        return Undefined(f"the baseline scored {theirs.size:,} tokens and the candidate {ours.size:,}")
    nats = mean(theirs - ours, windows(ours.size, lengths), seed)
    return nats if isinstance(nats, Undefined) else _exponential(nats)


def _exponential(nats: Estimate) -> Estimate | Undefined:
    try:
        interval = nats.interval and _interval(
            math.exp(nats.interval.low), math.exp(nats.interval.high), nats.interval.method
        )
        return Estimate(math.exp(nats.value), interval, nats.n)
    except OverflowError:
        return Undefined(f"too large to be a number: exp({nats.value:.0f})")


def _interval(low: float, high: float, method: str) -> Interval:
    return Interval(low=low, high=high, method=method)


def _totals(values: npt.NDArray[np.float64], units: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.bincount(units, weights=values).astype(np.float64)


def _resampled_mean(
    sums: npt.NDArray[np.float64],
    sizes: npt.NDArray[np.float64],
    seed: int,
    counts: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.float64]:
    """Ratio sum/size of ``RESAMPLES`` resamples of units; an entry stands for ``counts`` equal units (default 1)."""
    many = np.ones(len(sums), dtype=np.int64) if counts is None else counts
    total = int(many.sum())
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK // len(sums))
    parts = []
    for start in range(0, RESAMPLES, rows):
        drawn = rng.multinomial(total, many / total, size=min(rows, RESAMPLES - start))
        parts.append((drawn @ sums) / (drawn @ sizes))
    return np.concatenate(parts)
