"""The few exact distribution functions that the intervals need (SciPy would cost the web process 40 MiB)."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

_NORMAL = NormalDist()


def normal_quantile(p: float) -> float:
    """Quantile of the standard normal distribution, 0 < p < 1."""
    return _NORMAL.inv_cdf(p)


def normal_cdf(x: float) -> float:
    """Standard normal P(X <= x), accurate in the lower tail too."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def student_cdf(t: float, df: int) -> float:
    """P(T <= t) of Student's t with integer ``df`` >= 1.

    Source: Abramowitz & Stegun, 26.7.3 and 26.7.4 (finite trigonometric series, exact).
    """
    theta = math.atan2(t, math.sqrt(df))
    cos2 = math.cos(theta) ** 2
    term, total = 1.0, 0.0
    if df % 2:
        if df > 1:
            total = term = math.cos(theta)
            for k in range(3, df - 1, 2):
                term *= cos2 * (k - 1) / k
                total += term
        between = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        total = term
        for k in range(2, df - 1, 2):
            term *= cos2 * (k - 1) / k
            total += term
        between = math.sin(theta) * total
    return 0.5 + between / 2


@cache
def student_quantile(p: float, df: int) -> float:
    """Quantile of Student's t by bisection of the exact distribution function; beyond 1,000 df it is normal."""
    if df > 1000:
        return normal_quantile(p)
    low, high = -1e4, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) of a binomial with ``n`` trials, 0 < p < 1, summed in logarithms from its largest term."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    odds = p / (1 - p)
    start = min(k, int(n * p))  # the largest term at or below k
    log_start = (
        math.lgamma(n + 1)
        - math.lgamma(start + 1)
        - math.lgamma(n - start + 1)
        + start * math.log(p)
        + (n - start) * math.log1p(-p)
    )
    total = term = 1.0
    for i in range(start, 0, -1):
        term *= i / ((n - i + 1) * odds)
        total += term
        if term < 1e-18 * total:
            break
    term = 1.0
    for i in range(start, k):
        term *= (n - i) / (i + 1) * odds
        total += term
        if term < 1e-18 * total:
            break
    return min(1.0, math.exp(log_start + math.log(total)))
