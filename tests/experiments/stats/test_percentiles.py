"""Percentiles say how many samples they need, and their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.stats import (
    Insufficient,
    Undefined,
    block_percentile,
    percentile,
    percentile_interval,
    percentile_needs,
)
from experiments.stats.distributions import binomial_cdf, normal_cdf, student_cdf, student_quantile


@pytest.mark.parametrize(("p", "needed"), [(90, 64), (95, 130), (99, 662), (99.9, 6636)])
def test_a_percentile_needs_as_many_samples_as_mlperf_says(p: float, needed: int) -> None:
    assert percentile_needs(p) == needed


def test_661_samples_give_no_p99_and_662_do() -> None:
    short = percentile(np.arange(661.0), 99)
    assert isinstance(short, Insufficient)
    assert (short.n, short.needed, short.reason) == (661, 662, "insufficient (661 of 662)")
    assert percentile(np.arange(662.0), 99) == pytest.approx(0.99 * 661)


@given(st.floats(50.1, 99.9))
@settings(max_examples=60, deadline=None)
def test_the_rule_holds_at_its_number_and_not_one_below(p: float) -> None:
    n = percentile_needs(p)
    assert binomial_cdf(1, n, 1 - p / 100) <= 0.01 + 1e-12
    assert binomial_cdf(1, n - 1, 1 - p / 100) > 0.01 - 1e-12


def test_the_median_needs_one_sample_and_none_is_undefined() -> None:
    assert percentile([3.0], 50) == 3.0
    assert isinstance(percentile([], 50), Undefined)
    assert percentile_interval([1.0, 2.0, 3.0, 4.0, 5.0], 50) is None
    assert percentile_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 50) is not None


def test_samples_that_are_not_finite_make_a_percentile_undefined() -> None:
    assert isinstance(percentile([1.0, float("nan")], 50), Undefined)


@pytest.mark.parametrize("p", [-1, 0, 100, 101])
def test_a_percentile_outside_0_to_100_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile_needs(p)


@pytest.mark.parametrize(("p", "n"), [(50, 30), (90, 100), (99, 700)])
def test_order_statistics_hold_the_true_percentile_of_independent_samples(p: float, n: int) -> None:
    rng = np.random.default_rng(1)
    truth = -np.log(1 - p / 100)  # of an exponential distribution
    hits = 0
    for _ in range(400):
        interval = percentile_interval(rng.exponential(size=n), p)
        hits += interval is not None and interval.contains(truth)
    assert 0.93 <= hits / 400 <= 0.995


@pytest.mark.parametrize("spread", [0.0, 0.03])
def test_a_median_over_blocks_that_differ_from_each_other_keeps_its_coverage(spread: float) -> None:
    rng = np.random.default_rng(2)
    truth = float(np.median(np.exp(rng.normal(0, spread, (4000, 1)) + rng.gamma(2, 0.1, (4000, 100)))))
    hits = 0
    for seed in range(300):
        blocks = [np.exp(rng.normal(0, spread) + rng.gamma(2, 0.1, 40)) for _ in range(16)]
        estimate = block_percentile(blocks, 50, seed)
        assert not isinstance(estimate, Undefined)
        assert estimate.interval is not None
        hits += estimate.interval.contains(truth)
    assert 0.93 <= hits / 300 <= 0.995


@given(st.lists(st.lists(st.floats(0.1, 100), min_size=1, max_size=12), min_size=1, max_size=10))
@settings(max_examples=60, deadline=None)
def test_a_percentile_over_blocks_is_that_of_the_pooled_samples_and_lies_in_its_interval(
    blocks: list[list[float]],
) -> None:
    estimate = block_percentile(blocks, 50, seed=0)
    assert not isinstance(estimate, Undefined)
    assert estimate.value == pytest.approx(np.median(np.concatenate(blocks)))
    assert estimate.interval is None or estimate.interval.contains(estimate.value)


def test_distributions_agree_with_scipy() -> None:
    scipy = pytest.importorskip("scipy.stats")
    for df in (1, 2, 3, 4, 7, 8, 29, 30, 500):
        assert student_quantile(0.975, df) == pytest.approx(scipy.t.ppf(0.975, df), rel=1e-9)
        assert student_cdf(-1.3, df) == pytest.approx(scipy.t.cdf(-1.3, df), rel=1e-9)
    for k, n, p in ((0, 5, 0.1), (3, 10, 0.5), (499, 1000, 0.5), (660, 662, 0.99), (48_900, 100_000, 0.5)):
        assert binomial_cdf(k, n, p) == pytest.approx(scipy.binom.cdf(k, n, p), rel=1e-6)
    assert normal_cdf(-6) == pytest.approx(scipy.norm.cdf(-6), rel=1e-9)
