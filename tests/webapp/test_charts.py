"""Charts: every figure is plain JSON, carries a sentence and a table, and never reads a name as markup."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.records import Measurement, StudyReport
from tests.webapp import study_reports
from webapp.compare import charts, labelling, pareto_chart, selectors
from webapp.compare.figures import Chart

MARKUP = "<img src=x onerror=alert(1)> &amp;"


def every(report: StudyReport) -> list[Chart]:
    """All charts of the report."""
    compared = selectors.comparison(report)
    return [*([compared.pareto] if compared.pareto else []), *compared.charts]


def renamed(report: StudyReport, old: str, new: str) -> StudyReport:
    """The report with one experiment under another name."""
    return report.model_copy(
        update={
            "experiments": tuple(
                e.model_copy(update={"experiment": new}) if e.experiment == old else e for e in report.experiments
            )
        }
    )


def texts(value: Any) -> list[str]:
    """Every text in a figure."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for part in inner for text in texts(part)]


def test_a_study_has_its_four_charts_each_with_sentence_and_table() -> None:
    made = every(study_reports.study_report())
    assert [chart.key for chart in made] == ["pareto", "latency", "memory", "cost"]
    for chart in made:
        json.dumps(chart.figure, allow_nan=False)
        assert chart.summary.endswith(".") or "closed-loop" in chart.summary
        assert len(chart.body) == 6
        assert all(len(row) == len(chart.head) for row in chart.body)


def test_names_are_literal_in_every_label() -> None:
    report = renamed(study_reports.study_report(), "fp16", MARKUP)
    for chart in every(report):
        shown = [text for text in texts(chart.figure["data"]) if "onerror" in text and text != MARKUP]
        assert shown
        assert all("<img" not in text and "&lt;img" in text for text in shown), chart.key
        assert any(MARKUP in row for row in chart.body)  # the table is escaped by its template


def test_axes_point_where_better_is() -> None:
    layout = pareto_chart.pareto(study_reports.study_report(), "latency_p50_ms", "accuracy", 1).figure["layout"]
    assert layout["xaxis"]["title"]["text"] == "Latency p50, ms (log): less is better"
    assert layout["yaxis"]["title"]["text"] == "Accuracy: more is better"


def test_a_missing_number_leaves_the_experiment_out_and_says_so() -> None:
    report = study_reports.study_report()
    chart = pareto_chart.pareto(report, "latency_p99_ms", "accuracy", 1)
    assert "Not shown, since a number is missing: fp32" in chart.summary
    assert chart.body[0] == ("fp32", "none", "none", "not shown")


def test_bytes_are_drawn_in_the_unit_of_the_axis() -> None:
    chart = pareto_chart.pareto(study_reports.study_report(), "artifact_bytes", "rss_tree_peak_bytes", 1)
    baseline = next(t for t in chart.figure["data"] if t.get("meta", {}).get("experiment") == "fp32")
    assert baseline["x"] == [pytest.approx(90.9)]
    assert baseline["y"] == [pytest.approx(518)]


def test_samples_are_thinned_to_order_statistics_with_their_extremes() -> None:
    kept = charts._thin([float(n) for n in range(10_000)])
    assert (len(kept), kept[0], kept[-1]) == (charts.MAX_SAMPLES, 0.0, 9999.0)
    assert kept == sorted(kept)


def test_a_study_without_samples_memory_or_cost_has_no_such_chart() -> None:
    report = study_reports.study_report(["fp32", "fp16"])
    bare = tuple(
        e.model_copy(update={"measurements": (Measurement(metric="accuracy", value=0.9, unit="share"),)})
        for e in report.experiments
    )
    compared = selectors.comparison(report.model_copy(update={"experiments": bare}))
    assert compared.charts == ()
    assert compared.pareto is None


def test_an_empty_study_compares_to_nothing() -> None:
    report = study_reports.study_report(["fp32"]).model_copy(update={"experiments": ()})
    compared = selectors.comparison(report)
    assert (compared.table.rows, compared.limits, compared.sweet) == ((), (), None)


def test_many_points_carry_only_the_names_that_matter() -> None:
    base = study_reports.study_report(["fp32"])
    one = base.experiments[0]
    many = tuple(
        one.model_copy(
            update={
                "experiment": "fp32" if n == 0 else f"e{n}",
                "measurements": tuple(
                    m.model_copy(update={"value": m.value * (1 + n)}) if m.metric == "latency_p50_ms" and m.value else m
                    for m in one.measurements
                ),
            }
        )
        for n in range(40)
    )
    chart = pareto_chart.pareto(base.model_copy(update={"experiments": many}), "latency_p50_ms", "accuracy", 1)
    labelled = [t["meta"]["experiment"] for t in chart.figure["data"] if t.get("mode") == "markers+text"]
    assert labelled == ["fp32"]


def test_names_of_points_cover_neither_each_other_nor_a_point() -> None:
    points = [(0.10, 0.55), (0.25, 0.7), (0.3, 0.7), (0.86, 0.62), (0.97, 0.7), (0.12, 0.4)]
    texts = [
        "int8-dynamic-onnxruntime (sweet spot)",
        "fp32-onnxruntime",
        "fp32 (baseline)",
        "bf16",
        "fp16",
        "int8-dynamic",
    ]
    positions = labelling.places(points, texts)
    sides = {name: (side, height) for name, side, height in labelling.POSITIONS}
    boxes = [
        labelling._box(x, y, len(text), *sides[position])
        for (x, y), text, position in zip(points, texts, positions, strict=True)
    ]
    for index, box in enumerate(boxes):
        assert box.outside == 0
        assert all(box.overlap(other) == 0 for other in boxes[index + 1 :]), texts[index]


def test_as_many_points_as_labels_even_where_all_lie_together() -> None:
    assert len(labelling.places([(0.5, 0.5)] * 20, ["same place"] * 20)) == 20
