"""Intervals and tests for shares of examples: one proportion, and two on the same examples."""

from __future__ import annotations

import math

from experiments.records import Interval
from experiments.stats.distributions import binomial_cdf, normal_quantile


def proportion(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Interval for a proportion, ``n`` >= 1.

    Source: Wilson (1927), score interval without continuity correction.
    """
    z = normal_quantile(0.5 + confidence / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Interval(
        low=0.0 if successes == 0 else max(0.0, centre - half),
        high=1.0 if successes == n else min(1.0, centre + half),
        confidence=confidence,
        method=f"Wilson score, {n:,} examples",
    )


def proportion_difference(gained: int, lost: int, n: int, confidence: float = 0.95) -> Interval:
    """Interval for (gained - lost) / n, the difference of two proportions on the same ``n`` >= 1 examples.

    ``gained`` examples are right only with the candidate, ``lost`` only with the baseline. Unlike a bootstrap it
    keeps its coverage when few or no examples change (where a bootstrap claims [0, 0]).

    Source: Agresti & Min (2005), Wald interval after adding half an example to each of the four cells.
    """
    z = normal_quantile(0.5 + confidence / 2)
    total = n + 2
    b, c = gained + 0.5, lost + 0.5
    centre = (b - c) / total
    half = z * math.sqrt(b + c - (b - c) ** 2 / total) / total
    return Interval(
        low=max(-1.0, centre - half),
        high=min(1.0, centre + half),
        confidence=confidence,
        method=f"Agresti-Min for paired proportions, {n:,} examples",
    )


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p-value that right->wrong and wrong->right are equally likely; 1 without any change.

    Source: McNemar (1947), exact binomial form.
    """
    changed = gained + lost
    if changed == 0:
        return 1.0
    return min(1.0, 2 * binomial_cdf(min(gained, lost), changed, 0.5))
