"""What all metrics promise, whatever was seen or is missing."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import catalog
from experiments.protocols import Observations, Outputs, Task
from experiments.records import Measurement
from tests.experiments.metrics.observed import artifact, blocks, classified, generated, measured, observations, spec

TASKS = get_args(Task)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("candidate", ["base", "small"])
def test_with_nothing_seen_every_metric_gives_its_names_with_reasons(task: Task, candidate: str) -> None:
    seen = observations(spec(task=task, candidate=candidate))
    for metric in catalog.metrics():
        if task not in metric.tasks:
            continue
        made = metric.measure(seen)
        assert {m.metric for m in made} == {d.name for d in metric.definitions}
        for measurement in made:
            assert measurement.value is not None or measurement.reason
            assert measurement.value != 0 or measurement.metric in {"sparsity"}
            json.loads(measurement.model_dump_json())


def test_units_and_definitions_agree_and_names_are_unique() -> None:
    names = [d.name for metric in catalog.metrics() for d in metric.definitions]
    assert len(names) == len(set(names))
    for definition in catalog.definitions().values():
        assert definition.title
        assert definition.definition.endswith(".")
        assert definition.name.endswith("_ms") == (definition.unit == "ms")
        assert definition.name.endswith("_usd") == (definition.unit == "USD")


@pytest.mark.parametrize("metric", catalog.metrics(), ids=lambda m: type(m).__name__)
def test_a_metric_class_keeps_to_one_group(metric: Any) -> None:
    assert len({d.group for d in metric.definitions}) == 1


def test_the_baseline_compared_with_itself_has_no_kl_and_no_flips() -> None:
    rng = np.random.default_rng(0)
    outputs = classified(rng.normal(0, 9, (700, 3)), rng.integers(0, 3, 700))
    for baseline in (None, outputs):
        found = measured(observations(spec(candidate="base"), candidate=outputs, baseline=baseline))
        for name in ("kl_divergence_mean", "kl_divergence_median", "kl_divergence_p99"):
            value = found[name].value
            assert value is not None
            assert value <= 1e-7
        assert found["flips"].value == 0
        assert found["flips_p_value"].value == 1
        assert found["top1_agreement"].value == 1
        assert found["accuracy_delta"].value == 0
        assert found["size_ratio"].value == 1


def _full(task: Task, seed: int, bad: float | None) -> Observations:
    """Everything seen, with one poisoned value if ``bad`` is given."""
    rng = np.random.default_rng(seed)
    more: dict[str, Any] = {"artifact": artifact(700), "memory": {"rss_tree_peak": 5, "children": 0}}
    if task == "text-generation":
        log_probs = [rng.normal(-3, 1, 40) for _ in range(2)]
        logits = [rng.normal(size=(40, 6)).astype(np.float32) for _ in range(2)]
        if bad is not None:
            log_probs[0][3] = bad
            logits[0][3, 2] = bad
        targets = rng.integers(0, 6, 40)
        mine, base = (
            Outputs(logits=x, targets=targets, token_log_probs=p) for x, p in zip(logits, log_probs, strict=True)
        )
        more["blocks"] = tuple(generated(s, i, 3, 9, 2 + i / 9) for i in range(8) for s in ("baseline", "candidate"))
        more["pack"] = {"n_tokens": 40, "n_bytes": 150, "window_tokens": [10] * 4}
    elif task == "feature-extraction":
        embeddings = [rng.normal(size=(20, 4)).astype(np.float32) for _ in range(2)]
        if bad is not None:
            embeddings[0][3, 2] = bad
        scores = rng.normal(size=10)
        mine, base = (Outputs(embeddings=e, targets=scores) for e in embeddings)
    else:
        logits = [rng.normal(size=(30, 3)).astype(np.float32) for _ in range(2)]
        if bad is not None:
            logits[0][3, 2] = bad
        targets = rng.integers(0, 3, 30)
        mine, base = (classified(x, targets) for x in logits)
    more.setdefault("blocks", blocks(rng.uniform(5, 6, (8, 4)).tolist(), rng.uniform(3, 4, (8, 4)).tolist()))
    return observations(spec(task=task), candidate=mine, baseline=base, **more)


@given(st.sampled_from(TASKS), st.integers(0, 50), st.sampled_from([None, float("nan"), float("inf"), -float("inf")]))
@settings(max_examples=60, deadline=None)
def test_no_input_ever_makes_a_measurement_that_is_not_valid_json(task: Task, seed: int, bad: float | None) -> None:
    with np.errstate(all="ignore"):
        found = measured(_full(task, seed, bad))
    for measurement in found.values():
        text = measurement.model_dump_json()
        assert "NaN" not in text
        assert "Infinity" not in text
        assert Measurement.model_validate_json(text) == measurement
        if measurement.interval is not None and measurement.value is not None:
            slack = 1e-9 * abs(measurement.value)
            assert measurement.interval.low - slack <= measurement.interval.high


def test_the_same_observations_give_the_same_measurements_to_the_last_digit() -> None:
    for task in TASKS:
        assert measured(_full(task, 3, None)) == measured(_full(task, 3, None))
