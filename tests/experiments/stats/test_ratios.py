"""A speed-up's interval keeps its promise, also for few pairs, block effects and drift."""

from __future__ import annotations

import math
import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.records import Interval
from experiments.stats import Ratio, Undefined, ratio_of_medians, verdict

Pairs = list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]
#: Of the synthetic candidate.
TRUE_SPEEDUP = 1.2


def synthetic(rng: np.random.Generator, n: int, samples: int, block: float, drift: float) -> Pairs:
    """Pairs with skewed noise, a drift and a shock that both blocks of a pair share, and effects of each block."""
    pairs = []
    for i in range(n):
        shared = drift * i / n + rng.normal(0, 0.05)
        baseline = np.exp(shared + rng.normal(0, block) + rng.gamma(2, 0.06, samples))
        candidate = np.exp(shared + rng.normal(0, block) + rng.gamma(2, 0.06, samples)) / TRUE_SPEEDUP
        pairs.append((baseline, candidate))
    return pairs


def coverage(n: int, truth: float = TRUE_SPEEDUP, runs: int = 300) -> float:
    """Share of intervals that hold the truth, over block sizes, block effects and drifts."""
    hits = total = 0
    rng = np.random.default_rng(n)
    for samples in (3, 30, 100):
        for block, drift in ((0.0, 0.2), (0.02, 0.2), (0.05, 0.3)):
            for seed in range(runs // 9 + 1):
                ratio = ratio_of_medians(synthetic(rng, n, samples, block, drift), seed, resamples=500)
                assert isinstance(ratio, Ratio)
                assert ratio.interval is not None
                hits += ratio.interval.contains(truth)
                total += 1
    return hits / total


@pytest.mark.parametrize("pairs", [8, 12, 20, 30])
def test_95_percent_intervals_hold_the_true_speedup_in_93_to_97_percent_of_runs(pairs: int) -> None:
    # Over 2,700 runs each: 96.8, 96.6, 95.7 and 95.8 %. Here fewer, so the upper bound has two standard errors more.
    assert 0.93 <= coverage(pairs, runs=720) <= 0.97 + 2 * math.sqrt(0.97 * 0.03 / 720)


@pytest.mark.parametrize("pairs", [2, 3, 5])
def test_with_very_few_pairs_the_interval_is_wide_rather_than_wrong(pairs: int) -> None:
    assert coverage(pairs) >= 0.93


def test_an_a_a_comparison_is_rarely_called_different() -> None:
    rng = np.random.default_rng(7)
    called = 0
    for seed in range(300):
        pairs = [(b, c * TRUE_SPEEDUP) for b, c in synthetic(rng, 10, 20, 0.02, 0.3)]
        ratio = ratio_of_medians(pairs, seed, resamples=500)
        assert isinstance(ratio, Ratio)
        called += verdict(ratio.interval) != "not distinguishable"
    assert called / 300 <= 0.07


def test_a_candidate_that_is_faster_has_a_ratio_above_1() -> None:
    ratio = ratio_of_medians([([2.0, 2.1], [1.0, 1.05])] * 10, seed=0)
    assert isinstance(ratio, Ratio)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.n_pairs == 10
    assert verdict(ratio.interval) == "faster"


def test_drift_that_both_sides_share_does_not_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    steady, drifting = (ratio_of_medians(synthetic(rng, 20, 100, 0.0, d), 0) for d in (0.0, 1.0))
    assert isinstance(steady, Ratio)
    assert isinstance(drifting, Ratio)
    assert steady.interval is not None
    assert drifting.interval is not None
    assert drifting.interval.high - drifting.interval.low < 0.2


def test_the_same_pairs_and_seed_give_the_same_interval() -> None:
    pairs = synthetic(np.random.default_rng(4), 10, 10, 0.02, 0.1)
    assert ratio_of_medians(pairs, seed=5) == ratio_of_medians(pairs, seed=5)


def test_one_pair_has_a_ratio_but_no_interval() -> None:
    ratio = ratio_of_medians([([3.0], [2.0])], seed=0)
    assert isinstance(ratio, Ratio)
    assert (ratio.value, ratio.interval) == (1.5, None)
    assert verdict(ratio.interval) == "not distinguishable"


@pytest.mark.parametrize("pairs", [[], [([], [1.0])], [([1.0], [0.0])], [([1.0], [float("nan")])], [([-1.0], [1.0])]])
def test_no_samples_or_impossible_ones_are_undefined_with_a_reason(pairs: Pairs) -> None:
    ratio = ratio_of_medians(pairs, seed=0)
    assert isinstance(ratio, Undefined)
    assert ratio.reason


def test_thirty_pairs_of_a_thousand_samples_take_milliseconds() -> None:
    pairs = synthetic(np.random.default_rng(6), 30, 1000, 0.02, 0.1)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        ratio_of_medians(pairs, seed=0)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.25  # 0.03 s on an idle core; other processes may hold this one


block = st.lists(st.floats(0.5, 50), min_size=1, max_size=8)


@given(st.lists(st.tuples(block, block), min_size=2, max_size=12), st.floats(0.25, 4))
@settings(max_examples=60, deadline=None)
def test_the_interval_holds_the_value_and_scales_with_the_candidate(
    pairs: list[tuple[list[float], list[float]]], factor: float
) -> None:
    ratio = ratio_of_medians(pairs, seed=1, resamples=200)
    scaled = ratio_of_medians([(b, [x * factor for x in c]) for b, c in pairs], seed=1, resamples=200)
    assert isinstance(ratio, Ratio)
    assert isinstance(scaled, Ratio)
    assert ratio.interval is not None
    assert scaled.interval is not None
    assert ratio.interval.low <= ratio.value <= ratio.interval.high
    assert scaled.value == pytest.approx(ratio.value / factor, rel=1e-9)
    assert math.log(scaled.interval.high / scaled.interval.low) == pytest.approx(
        math.log(ratio.interval.high / ratio.interval.low), abs=1e-6
    )


@given(st.lists(st.tuples(block, block), min_size=2, max_size=6), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_resampled_medians_equal_those_of_pooled_samples(
    pairs: list[tuple[list[float], list[float]]], seed: int
) -> None:
    from experiments.stats.blocks import resampled_percentiles, resampled_weights

    blocks = [np.array(b) for b, _ in pairs]
    weights = resampled_weights(len(blocks), seed, 20)
    for p in (50, 90):
        expected = [
            np.percentile(np.concatenate([b for b, w in zip(blocks, row, strict=True) for _ in range(w)]), p)
            for row in weights
        ]
        assert resampled_percentiles(blocks, weights, p) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(1.1, 1.3, "faster"), (0.7, 0.9, "slower"), (0.9, 1.1, "not distinguishable"), (1.0, 1.2, "not distinguishable")],
)
def test_a_verdict_is_given_only_if_the_interval_excludes_1(low: float, high: float, said: str) -> None:
    assert verdict(Interval(low=low, high=high, method="")) == said
