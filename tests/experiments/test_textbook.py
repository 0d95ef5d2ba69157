"""What the textbook claims beside what was measured: judged by the interval alone."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import textbook
from experiments.protocols import Textbook
from experiments.records import ArtifactRecord, Environment, Interval, Label, Measurement, Report, StudyReport
from experiments.table import render_markdown, render_text
from experiments.techniques.int8_dynamic import Int8Dynamic

OLD_CPU, NEW_CPU = ("avx2", "fma"), ("avx2", "avx512_vnni", "avx512_fp16")


def measured(metric: str, value: float, low: float | None = None, high: float | None = None) -> Measurement:
    at: dict[str, str | int | float] = {"batch_size": 1} if metric.startswith(("speedup", "cost")) else {}
    interval = Interval(low=low, high=high, method="a bootstrap") if low is not None and high is not None else None
    return Measurement(metric=metric, value=value, unit="", at=at, interval=interval)


def report(
    name: str = "int8",
    recipe: tuple[str, ...] = ("int8-dynamic",),
    *,
    runtime: str = "torch-eager",
    label: Label = Label.PACKED,
    isa: tuple[str, ...] = OLD_CPU,
    dtype: str = "int8",
    found: tuple[Measurement, ...] = (),
    steps: list[dict[str, Any]] | None = None,
) -> Report:
    environment = Environment.model_validate(
        {
            "model": "m", "model_sha256": "m", "workload_sha256": "w", "spec_sha256": "s", "code_version": "1",
            "hostname": "h", "cpu": "c", "isa": isa, "cores": (0,), "threads": 1, "memory_bytes": 1,
            "devices": ({"name": "cpu:0", "kind": "cpu", "model": "c"},), "libraries": {}, "python": "3",
            "platform": "p", "seed": 0,
        }
    )  # fmt: skip
    return Report(
        experiment=name,
        baseline="fp32",
        task="text-classification",
        spec={
            "variant": {
                "name": name,
                "recipe": steps if steps is not None else [{"technique": step} for step in recipe],
                "runtime": {"kind": runtime},
            },
            "baseline": {"name": "fp32", "recipe": [], "runtime": {"kind": "torch-eager"}},
        },
        status="succeeded",
        measurements=found,
        artifact=ArtifactRecord(
            sha256="a", form="torch", label=label, bytes=1, files={}, parameters=1, dtype=dtype
        ),
        environment=environment,
    )  # fmt: skip


BASE = report("fp32", (), found=(measured("accuracy", 0.8), measured("cost_per_1k_requests_usd", 0.04)))


def study(*reports: Report) -> StudyReport:
    spec = {"workload": {"batch_sizes": [1]}}
    return StudyReport(name="s", baseline="fp32", spec=spec, experiments=(BASE, *reports))


def row(one: Report, *others: Report) -> textbook.Row:
    return next(r for r in textbook.rows(study(one, *others)) if r.experiment == one.experiment)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(1.6, 2.0, "holds"), (5.0, 6.0, "holds"), (1.2, 1.4, "fails here"), (1.4, 1.6, "can't tell")],
)
def test_a_speed_claim_is_judged_by_its_whole_interval(low: float, high: float, outcome: str) -> None:
    cell = row(report(found=(measured("speedup_p50", (low + high) / 2, low, high),))).cell("latency")
    assert cell.claim == "1.5x to 4x faster"
    assert cell.outcome == outcome
    assert bool(cell.why) == (outcome == "fails here")


def test_a_speed_without_an_interval_is_not_judged() -> None:
    assert row(report(found=(measured("speedup_p50", 0.2),))).cell("latency").outcome == "can't tell"


@pytest.mark.parametrize(("ratio", "outcome"), [(0.255, "holds"), (0.2, "holds"), (0.4, "fails here")])
def test_a_size_is_counted_and_needs_no_interval(ratio: float, outcome: str) -> None:
    assert row(report(found=(measured("size_ratio", ratio),))).cell("size").outcome == outcome


@pytest.mark.parametrize(
    ("delta", "low", "high", "outcome"),
    [
        (-0.004, -0.010, 0.002, "holds"),  # at most 1.25 % of 0.8 lost
        (0.01, 0.002, 0.02, "holds"),  # better than before
        (-0.08, -0.1, -0.06, "fails here"),
        (-0.02, -0.05, 0.01, "can't tell"),
    ],
)
def test_a_loss_is_a_share_of_the_baselines_score(delta: float, low: float, high: float, outcome: str) -> None:
    found = (measured("accuracy", 0.8 + delta), measured("accuracy_delta", delta, low, high))
    cell = row(report(found=found)).cell("quality")
    assert cell.claim == "0.5 to 2 % lost"
    assert cell.outcome == outcome
    assert cell.measured == pytest.approx(-delta / 0.8)


def test_a_perplexity_that_rises_is_a_loss() -> None:
    base = report("fp32", (), found=(measured("perplexity", 20.0),))
    worse = report(found=(measured("perplexity", 30.0), measured("perplexity_ratio", 1.5, 1.4, 1.6)))
    made = textbook.rows(StudyReport(name="s", baseline="fp32", spec={}, experiments=(base, worse)))[0]
    assert made.cell("quality").text == "50.0 % lost [40.0, 60.0] %"
    assert made.cell("quality").outcome == "fails here"


def test_claims_of_a_chain_multiply_and_losses_add() -> None:
    chain = report(recipe=("fp16", "int8-dynamic"), found=(measured("size_ratio", 0.125),))
    made = row(chain)
    assert made.cell("size").claim == "8x smaller"
    assert made.cell("latency").claim == "2.7x to 8.8x faster"
    assert made.cell("quality").claim == "0.5 to 2.5 % lost"
    assert made.techniques == ("FP16", "INT8 dynamic")


@pytest.mark.parametrize(
    ("low", "high", "outcome"), [(0.98, 1.02, "holds"), (0.9, 1.01, "can't tell"), (0.8, 0.9, "fails here")]
)
def test_as_fast_as_before_is_a_claim_with_some_room(
    low: float, high: float, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Int8Dynamic, "textbook", Textbook(latency="unchanged", speedup=(1.0, 1.0), shrink=(1.0, 1.0)))
    made = row(report(found=(measured("speedup_p50", 1.0, low, high), measured("size_ratio", 1.01))))
    assert made.cell("latency").claim == "as fast as before"
    assert made.cell("latency").outcome == outcome
    assert (made.cell("size").claim, made.cell("size").outcome) == ("as large as before", "holds")


def test_missing_units_are_the_reason_where_they_are_missing() -> None:
    slow = measured("speedup_p50", 0.1, 0.09, 0.11)
    assert "no fp16 arithmetic units" in row(report(recipe=("fp16",), dtype="float16", found=(slow,))).reasons[0]
    assert "VNNI" in row(report(found=(slow,))).reasons[0]
    assert "VNNI" not in row(report(found=(slow,), isa=NEW_CPU)).reasons[0]


@pytest.mark.parametrize(
    ("label", "words"), [(Label.MASKED_SPARSE, "no sparse kernel"), (Label.FAKE_QUANT, "as wide as before")]
)
def test_a_mask_or_a_rounding_is_named_as_the_reason(label: Label, words: str) -> None:
    made = report(recipe=("fp16",), label=label, dtype="float32", isa=NEW_CPU)
    made = made.model_copy(update={"measurements": (measured("speedup_p50", 1.0, 0.99, 1.01),)})
    assert words in row(made).reasons[0]


def test_what_the_runtime_alone_does_is_said_beside_the_technique() -> None:
    alone = report("fp32-ort", (), runtime="onnxruntime", found=(measured("speedup_p50", 1.3, 1.2, 1.4),))
    other = report(runtime="onnxruntime", found=(measured("speedup_p50", 2.0, 1.9, 2.1),))
    assert row(other, alone).note == (
        "of its speed fp32-ort alone, the runtime without the technique, has 1.30x"
    )  # fmt: skip
    assert "did not measure apart" in row(other).note
    assert row(report(found=(measured("speedup_p50", 2.0, 1.9, 2.1),))).note == ""


def test_the_baseline_what_failed_and_what_has_no_recipe_have_no_row() -> None:
    failed = report("broken").model_copy(update={"status": "failed"})
    assert textbook.rows(study(failed, report("fp32-ort", (), runtime="onnxruntime"))) == ()


def test_a_step_of_another_version_is_left_out_and_breaks_nothing() -> None:
    unknown = report(steps=[{"technique": "gone"}, {"technique": "fp16", "colour": "red"}])
    assert textbook.rows(study(unknown)) == ()


def test_cost_is_relative_to_the_baseline() -> None:
    made = row(report(found=(measured("cost_per_1k_requests_usd", 0.02),)))
    assert made.cost == pytest.approx(0.5)
    assert made.cost_claim == "0.25x to 0.67x"


def test_terminal_and_markdown_have_a_line_where_a_claim_fails() -> None:
    slow = report(found=(measured("speedup_p50", 1.1, 1.05, 1.15), measured("size_ratio", 0.4)))
    line = "textbook, int8: 1.5x to 4x faster claimed, 1.10x [1.05, 1.15] here; 4x smaller claimed, 2.50x"
    assert line in render_text(study(slow))
    assert "4x smaller claimed" in render_markdown(study(slow))
    assert "textbook" not in render_text(study(report(found=(measured("speedup_p50", 2.0, 1.9, 2.1),))))
