"""Scores and their intervals: proportions, perplexity, divergence, F1, Spearman."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.stats import (
    Estimate,
    Undefined,
    bits_per_byte,
    cosine_rows,
    f1_macro,
    log_softmax,
    logits_divergence,
    mcnemar,
    mean,
    paired_difference,
    percentile,
    perplexity,
    perplexity_ratio,
    proportion,
    proportion_difference,
    ratio_of_sums,
    spearman,
    windows,
)


def estimate(value: Estimate | Undefined) -> Estimate:
    assert isinstance(value, Estimate), value
    return value


# --- divergence --------------------------------------------------------------------------------------------------


def test_kl_has_the_textbook_values_in_nats_and_in_both_directions() -> None:
    """FC-039."""
    p, q = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    assert logits_divergence(p, q).kl[0] == pytest.approx(0.510826, abs=1e-6)
    assert logits_divergence(q, p).kl[0] == pytest.approx(0.368064, abs=1e-6)


def test_kl_of_a_model_with_itself_is_0_even_for_wide_float32_logits() -> None:
    logits = (np.random.default_rng(0).normal(0, 20, (50, 4000))).astype(np.float32)
    divergence = logits_divergence(logits, logits)
    assert divergence.kl.max() <= 1e-7
    assert (divergence.top_p == divergence.top_q).all()


def test_kl_does_not_clip_rare_tokens() -> None:
    """FC-039: log-probabilities far below -16 count fully."""
    p = np.array([[0.0, -40.0]])
    q = np.array([[0.0, -60.0]])
    expected = math.exp(-40) * 20
    assert logits_divergence(p, q).kl[0] == pytest.approx(expected, abs=1e-16)
    assert logits_divergence(np.array([[0.0, 0.0]]), np.array([[0.0, -50.0]])).kl[0] == pytest.approx(
        25 - math.log(2), abs=1e-9
    )


def test_masked_tokens_are_fine_and_impossible_ones_infinite() -> None:
    masked = np.array([[0.0, 1.0, -np.inf]])
    assert logits_divergence(masked, masked).kl[0] == 0
    assert logits_divergence(np.array([[0.0, 1.0, 0.0]]), masked).kl[0] == np.inf
    assert np.isnan(logits_divergence(np.array([[np.nan, 1.0]]), np.array([[0.0, 1.0]])).kl[0])


def test_different_vocabularies_are_refused() -> None:
    with pytest.raises(ValueError, match="different shapes"):
        logits_divergence(np.zeros((2, 3)), np.zeros((2, 4)))


def test_rows_in_chunks_equal_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.stats import divergence

    rng = np.random.default_rng(1)
    p, q = rng.normal(size=(37, 11)), rng.normal(size=(37, 11))
    whole = logits_divergence(p, q)
    monkeypatch.setattr(divergence, "_CHUNK", 40)
    parts = logits_divergence(p, q)
    assert (whole.kl == parts.kl).all()
    assert (whole.top_q == parts.top_q).all()


rows = st.integers(2, 6).flatmap(
    lambda k: st.lists(st.lists(st.floats(-30, 30), min_size=k, max_size=k), min_size=2, max_size=2)
)


@given(rows)
@settings(max_examples=80, deadline=None)
def test_kl_is_never_negative_and_ignores_a_shift_of_the_logits(pair: list[list[float]]) -> None:
    p, q = np.array([pair[0]]), np.array([pair[1]])
    kl = logits_divergence(p, q).kl[0]
    assert kl >= 0
    assert logits_divergence(p + 7, q - 3).kl[0] == pytest.approx(kl, abs=1e-9)
    assert np.exp(log_softmax(p)).sum() == pytest.approx(1)


def test_cosine_of_rows() -> None:
    a = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    b = np.array([[0.0, 2.0], [3.0, 3.0], [1.0, 0.0]])
    cosines = cosine_rows(a, b)
    assert cosines[:2] == pytest.approx([0, 1])
    assert np.isnan(cosines[2])


# --- proportions -------------------------------------------------------------------------------------------------


def test_wilson_has_its_textbook_values_and_stays_within_0_and_1() -> None:
    interval = proportion(10, 100)
    assert (interval.low, interval.high) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert proportion(0, 20).low == 0.0
    assert proportion(0, 20).high == pytest.approx(0.161, abs=1e-3)
    assert proportion(20, 20).high == 1.0


@pytest.mark.parametrize("n", [20, 60, 500])
def test_paired_proportions_keep_their_coverage_where_few_examples_change(n: int) -> None:
    rng = np.random.default_rng(n)
    lost_chance, gained_chance = 0.03, 0.01
    hits = 0
    for _ in range(800):
        lost, gained, _ = rng.multinomial(n, [lost_chance, gained_chance, 1 - lost_chance - gained_chance])
        hits += proportion_difference(gained, lost, n).contains(gained_chance - lost_chance)
    assert hits / 800 >= 0.93


def test_no_change_at_all_is_not_certainty() -> None:
    interval = proportion_difference(0, 0, 50)
    assert interval.low < -0.01
    assert interval.high > 0.01


@given(st.integers(0, 30), st.integers(0, 30), st.integers(60, 200))
@settings(max_examples=60, deadline=None)
def test_swapping_the_sides_mirrors_the_difference(gained: int, lost: int, n: int) -> None:
    one, other = proportion_difference(gained, lost, n), proportion_difference(lost, gained, n)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert mcnemar(gained, lost) == mcnemar(lost, gained)
    assert 0 < mcnemar(gained, lost) <= 1


def test_mcnemar_is_exact() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(1, 0) == 1.0
    assert mcnemar(0, 6) == pytest.approx(2 / 64)
    assert mcnemar(2, 10) == pytest.approx(2 * (1 + 12 + 66) / 4096)
    assert mcnemar(45_000, 46_000) < 0.01


def test_the_paired_bootstrap_gains_from_pairing() -> None:
    rng = np.random.default_rng(9)
    hard = rng.normal(size=300)
    result = estimate(paired_difference(hard + 0.1 + rng.normal(0, 0.05, 300), hard, seed=1))
    assert result.value == pytest.approx(0.1, abs=0.02)
    assert result.interval is not None
    assert result.interval.high - result.interval.low < 0.02
    assert isinstance(paired_difference([], [], 0), Undefined)


def test_the_paired_bootstrap_keeps_its_coverage() -> None:
    rng = np.random.default_rng(10)
    hits = 0
    for seed in range(300):
        difference = rng.choice([-1.0, 0.0, 1.0], size=100, p=[0.15, 0.75, 0.10])
        result = estimate(paired_difference(difference, np.zeros(100), seed))
        assert result.interval is not None
        hits += result.interval.contains(-0.05)
    assert 0.92 <= hits / 300 <= 0.985


# --- means over windows ------------------------------------------------------------------------------------------


def test_perplexity_of_uniform_guesses_is_the_number_of_choices() -> None:
    result = estimate(perplexity(np.full(1000, -math.log(50)), [100] * 10))
    assert result.value == pytest.approx(50)
    assert result.interval is not None
    assert result.interval.contains(result.value) or result.interval.low == pytest.approx(50)


def test_perplexity_does_not_depend_on_how_the_tokens_are_cut_into_windows() -> None:
    """FC-037: the value is over all scored tokens, whatever the batches were."""
    log_probs = np.random.default_rng(2).normal(-3, 1, 45)
    assert estimate(perplexity(log_probs, [5, 40])).value == estimate(perplexity(log_probs, [40, 5])).value
    assert estimate(perplexity(log_probs)).value == pytest.approx(math.exp(-log_probs.mean()), rel=1e-12)


def test_windows_keep_the_coverage_where_neighbouring_tokens_are_alike() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(300):
        level = np.repeat(rng.normal(3, 0.4, 12), 50)  # each window has its own difficulty
        result = estimate(mean(level + rng.normal(0, 1, 600), windows(600, [50] * 12), seed))
        assert result.interval is not None
        hits += result.interval.contains(3)
    assert 0.92 <= hits / 300 <= 0.985


def test_a_perplexity_ratio_is_paired_and_1_for_the_same_model() -> None:
    log_probs = np.random.default_rng(4).normal(-3, 1, 600)
    same = estimate(perplexity_ratio(log_probs, log_probs, [100] * 6))
    assert (same.value, same.n) == (1.0, 6)
    worse = estimate(perplexity_ratio(log_probs - 0.05, log_probs, [100] * 6))
    assert worse.value == pytest.approx(math.exp(0.05))
    assert worse.interval is not None
    assert worse.interval.low > 1.04
    assert isinstance(perplexity_ratio(log_probs, log_probs[:-1]), Undefined)


def test_bits_per_byte_of_a_coin_per_byte_is_1() -> None:
    assert estimate(bits_per_byte(np.full(64, -math.log(2)), 64)).value == pytest.approx(1)
    assert isinstance(bits_per_byte([-1.0], 0), Undefined)


@pytest.mark.parametrize("bad", [[-1.0, float("nan")], [-1.0, -math.inf], []])
def test_log_probabilities_that_are_not_finite_are_undefined_not_nan(bad: list[float]) -> None:
    assert isinstance(perplexity(bad), Undefined)
    assert isinstance(bits_per_byte(bad, 10), Undefined)


def test_a_perplexity_too_large_for_a_number_is_undefined() -> None:
    assert isinstance(perplexity([-1e6, -1e6]), Undefined)


def test_throughput_is_the_ratio_of_sums_not_the_mean_of_ratios() -> None:
    result = estimate(ratio_of_sums([10, 10], [1, 3]))
    assert result.value == 5
    assert isinstance(ratio_of_sums([], []), Undefined)
    assert isinstance(ratio_of_sums([1], [0]), Undefined)


def test_lengths_that_do_not_add_up_are_replaced_by_runs_of_neighbours() -> None:
    assert windows(10, [3, 7]).tolist() == [0] * 3 + [1] * 7
    assert windows(10, [3, 3]).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert windows(0, None).tolist() == []


# --- F1 and Spearman ---------------------------------------------------------------------------------------------


def test_macro_f1_agrees_with_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(5)
    targets, predicted = rng.integers(0, 4, 300), rng.integers(0, 5, 300)
    result = estimate(f1_macro(predicted, targets))
    assert result.value == pytest.approx(sklearn.f1_score(targets, predicted, average="macro"))
    assert result.interval is not None
    assert result.interval.contains(result.value)


def test_one_class_only_makes_f1_undefined_with_the_reason() -> None:
    """FC-071."""
    result = f1_macro(np.array([0, 1, 0]), np.array([1, 1, 1]))
    assert isinstance(result, Undefined)
    assert "one class only" in result.reason


def test_spearman_agrees_with_scipy_and_shares_ranks_of_ties() -> None:
    scipy = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(6)
    a, b = rng.integers(0, 6, 80).astype(float), rng.normal(size=80)
    assert estimate(spearman(a, b)).value == pytest.approx(scipy.spearmanr(a, b).statistic)


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], "equal"),
        ([1.0, 2.0], [1.0, 2.0], "at least 3"),
        ([1.0, 2.0, float("nan")], [1.0, 2.0, 3.0], "finite"),
        ([1.0, 2.0, 3.0], [1.0, 2.0], "predictions"),
    ],
)
def test_a_correlation_that_does_not_exist_says_why(a: list[float], b: list[float], word: str) -> None:
    result = spearman(a, b)
    assert isinstance(result, Undefined)
    assert word in result.reason


def test_a_percentile_of_divergences_follows_the_minimum_sample_rule() -> None:
    assert isinstance(percentile(np.zeros(500), 99), Undefined)


def test_statistics_import_neither_torch_nor_scipy() -> None:
    import subprocess
    import sys

    code = "import experiments.stats, sys; print([m for m in ('torch', 'scipy', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
