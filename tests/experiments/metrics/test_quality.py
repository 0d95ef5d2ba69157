"""Accuracy, perplexity, fidelity, Spearman, memory and size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.metrics.accuracy import Accuracy
from experiments.metrics.fidelity import EmbeddingFidelity, LogitFidelity
from experiments.metrics.memory import Memory
from experiments.metrics.perplexity import Perplexity
from experiments.metrics.size import Size
from experiments.metrics.spearman import Spearman
from experiments.protocols import Metric, Observations, Outputs
from experiments.records import Label, Measurement
from tests.experiments.metrics.observed import artifact, classified, observations, spec


def by_name(metric: Metric, seen: Observations) -> dict[str, Measurement]:
    return {m.metric: m for m in metric.measure(seen)}


def one_hot(classes: list[int], k: int = 2) -> list[list[float]]:
    return [[5.0 if i == c else 0.0 for i in range(k)] for c in classes]


def test_accuracy_and_its_change_are_over_the_same_examples() -> None:
    targets = [0, 0, 1, 1, 1]
    seen = observations(
        candidate=classified(one_hot([0, 1, 1, 1, 0]), targets), baseline=classified(one_hot([1, 0, 1, 1, 1]), targets)
    )
    found = by_name(Accuracy(), seen)
    assert found["accuracy"].value == pytest.approx(0.6)
    assert found["accuracy"].interval is not None
    assert found["accuracy_delta"].value == pytest.approx(-0.2)
    assert found["accuracy_delta"].note == "1 examples became right and 2 wrong"
    assert found["f1_macro"].value == pytest.approx((0.5 + 2 / 3) / 2)


def test_one_class_only_leaves_accuracy_and_makes_f1_undefined() -> None:
    """FC-071: an evaluation split with a single class."""
    seen = observations(candidate=classified(one_hot([1, 1, 0, 1, 1, 1]), [1] * 6), pack={"classes": ["neg", "pos"]})
    found = by_name(Accuracy(), seen)
    assert found["accuracy"].value == pytest.approx(5 / 6)
    assert found["f1_macro"].value is None
    assert found["f1_macro"].reason == "the examples hold one class only ('pos')"


def test_flips_show_what_equal_accuracy_hides() -> None:
    targets = [0] * 8
    seen = observations(
        candidate=classified(one_hot([1, 1, 0, 0, 0, 0, 1, 1]), targets),
        baseline=classified(one_hot([0, 0, 1, 1, 0, 0, 1, 1]), targets),
    )
    found = by_name(LogitFidelity(), seen)
    assert found["flips"].value == pytest.approx(0.5)
    assert found["flips_p_value"].value == 1.0
    assert found["top1_agreement"].value == pytest.approx(0.5)
    assert "2 right -> wrong, 2 wrong -> right" in (found["flips"].note or "")
    assert by_name(Accuracy(), seen)["accuracy_delta"].value == 0


def test_kl_is_of_the_baseline_against_the_candidate_in_nats() -> None:
    """FC-039."""
    p, q = np.log([[0.5, 0.5]] * 4), np.log([[0.9, 0.1]] * 4)
    seen = observations(candidate=Outputs(logits=q), baseline=Outputs(logits=p))
    found = by_name(LogitFidelity(), seen)
    assert found["kl_divergence_mean"].value == pytest.approx(0.510826, abs=1e-6)
    assert found["kl_divergence_mean"].unit == "nats"
    assert "KL(baseline || candidate)" in LogitFidelity.definitions[0].definition
    assert found["kl_divergence_p99"].reason == "insufficient (4 of 662)"
    assert found["flips"].value is None


def test_columns_beyond_the_tokenizer_are_cut_on_both_sides_and_said() -> None:
    """FC-025: one family with differently padded vocabularies."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(10, 160))
    narrow = logits[:, :152]
    for mine, base in ((narrow, logits), (logits, narrow)):
        seen = observations(
            spec(task="text-generation"),
            candidate=Outputs(logits=mine),
            baseline=Outputs(logits=base),
            pack={"vocab_size": 150},
        )
        found = by_name(LogitFidelity(), seen)
        assert found["kl_divergence_mean"].value == pytest.approx(0, abs=1e-12)
        assert "columns beyond the tokenizer's 150 were cut" in (found["kl_divergence_mean"].note or "")


def test_other_outputs_than_the_baselines_are_not_compared() -> None:
    seen = observations(candidate=classified(np.zeros((3, 4))), baseline=classified(np.zeros((3, 2))))
    assert "different outputs" in (by_name(LogitFidelity(), seen)["kl_divergence_mean"].reason or "")
    seen = observations(candidate=classified(np.zeros((3, 2))), baseline=classified(np.zeros((4, 2))))
    assert "4 rows" in (by_name(LogitFidelity(), seen)["kl_divergence_mean"].reason or "")


def test_a_candidate_that_rules_out_what_the_baseline_allows_is_infinitely_far_not_nan() -> None:
    seen = observations(candidate=classified([[0.0, -math.inf]] * 2), baseline=classified([[0.0, 0.0], [0.0, 1.0]]))
    found = by_name(LogitFidelity(), seen)
    assert found["kl_divergence_mean"].value is None
    assert "infinite" in (found["kl_divergence_mean"].reason or "")


def language(mine: np.ndarray, theirs: np.ndarray | None = None, **pack: object) -> Observations:
    return observations(
        spec(task="text-generation"),
        candidate=Outputs(token_log_probs=mine),
        baseline=None if theirs is None else Outputs(token_log_probs=theirs),
        pack={"protocol": "windows of 8", "dataset_sha256": "d" * 64, **pack},
    )


def test_perplexity_names_its_protocol_and_is_paired_with_the_baselines() -> None:
    mine = np.full(40, -math.log(20.0))
    found = by_name(Perplexity(), language(mine, np.full(40, -math.log(16.0)), n_bytes=160, window_tokens=[8] * 5))
    assert found["perplexity"].value == pytest.approx(20)
    assert found["perplexity_ratio"].value == pytest.approx(1.25)
    assert found["bits_per_byte"].value == pytest.approx(math.log2(20) / 4)
    assert "windows of 8" in (found["perplexity"].note or "")
    assert "dddddddddddd" in (found["perplexity"].note or "")
    assert found["perplexity"].n == 40


def test_perplexity_is_refused_if_other_tokens_were_scored_than_the_protocol_has() -> None:
    """FC-037: a padded position that was scored too would show here."""
    found = by_name(Perplexity(), language(np.full(48, -1.0), n_tokens=45))
    assert found["perplexity"].value is None
    assert found["perplexity"].reason == "48 tokens were scored, but the protocol has 45"


def test_a_nan_in_the_scores_makes_perplexity_missing_not_the_best() -> None:
    """FC-005."""
    scores = np.full(40, -1.0)
    scores[7] = np.nan
    found = by_name(Perplexity(), language(scores, n_bytes=100))
    for name in ("perplexity", "bits_per_byte"):
        assert found[name].value is None
        assert "not finite" in (found[name].reason or "")


def test_cosine_to_the_baseline_is_a_mean_over_examples() -> None:
    base = np.array([[1.0, 0.0], [0.0, 1.0]])
    mine = np.array([[1.0, 0.0], [1.0, 1.0]])
    experiment = spec(task="feature-extraction")
    seen = observations(experiment, candidate=Outputs(embeddings=mine), baseline=Outputs(embeddings=base))
    found = by_name(EmbeddingFidelity(), seen)["cosine_to_baseline"]
    assert found.value == pytest.approx((1 + math.sqrt(0.5)) / 2)
    dead = observations(experiment, candidate=Outputs(embeddings=0 * mine), baseline=Outputs(embeddings=base))
    assert by_name(EmbeddingFidelity(), dead)["cosine_to_baseline"].value is None


def test_spearman_compares_pairs_with_their_scores() -> None:
    angles = np.array([0.1, 0.5, 1.0, 1.5, 2.0])
    first = np.tile([1.0, 0.0], (5, 1))
    second = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    outputs = Outputs(embeddings=np.concatenate([first, second]), targets=np.array([5.0, 4.0, 3.0, 2.0, 1.0]))
    found = by_name(Spearman(), observations(spec(task="feature-extraction"), candidate=outputs))["spearman"]
    assert found.value == pytest.approx(1)
    assert found.n == 5


def test_memory_that_was_not_measured_is_missing_with_the_reason_never_0() -> None:
    found = by_name(
        Memory(), observations(memory={"rss_tree_peak": 10**9, "torch_peak_allocated": None, "children": 0})
    )
    assert found["rss_tree_peak_bytes"].value == 1e9
    assert found["rss_tree_peak_bytes"].note == "the measured process alone; it has no children"
    for name in ("torch_peak_allocated_bytes", "torch_peak_reserved_bytes", "nvml_process_peak_bytes"):
        assert found[name].value is None
        assert "no GPU memory" in (found[name].reason or "")
    assert found["weights_bytes"].reason == "the runtime can't tell its weights' storages"


def test_sizes_come_from_the_disk_and_a_mask_claims_none() -> None:
    masked = artifact(size=1000, label=Label.MASKED_SPARSE)
    found = by_name(Size(), observations(artifact=masked, work={"zeros": 125.0}))
    assert found["size_ratio"].value == 1
    assert found["bits_per_weight"].value == 32
    assert found["sparsity"].value == 0.5
    assert "stored as wide as before" in (found["artifact_bytes"].note or "")
    small = by_name(Size(), observations(artifact=artifact(size=250, label=Label.PACKED)))
    assert small["size_ratio"].value == 0.25
    assert small["bits_per_weight"].value == 8
    assert small["sparsity"].value is None


def test_without_a_baseline_the_size_stays_and_the_ratio_says_why() -> None:
    found = by_name(Size(), observations(baseline_artifact=None))
    assert found["artifact_bytes"].value == 1000
    assert found["size_ratio"].reason == "the baseline could not be built"
