"""The comparison: what may be called better, who is on the frontier, what differs, and names that stay apart."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.records import Interval, Measurement, Report, StudyReport
from tests import factories
from tests.webapp import study_reports
from tests.webapp.pages import visitor
from webapp.compare import fingerprints, forest, limits, selectors
from webapp.compare.pareto import Axis, frontier
from webapp.compare.table import Cell, table
from webapp.core import formatting
from webapp.runs import services


def cell(report: StudyReport, experiment: str, metric: str, batch: int | None = 1) -> Cell:
    """One cell of the table."""
    row = next(r for r in table(report, batch).rows if r.name == experiment)
    return next(c for c in row.cells if c.metric == metric)


def changed(report: StudyReport, experiment: str, **replacements: Measurement) -> StudyReport:
    """The report with some measurements of one experiment replaced."""

    def of(e: Report) -> Report:
        if e.experiment != experiment:
            return e
        kept = [replacements.pop(m.metric) if m.metric in replacements else m for m in e.measurements]
        return e.model_copy(update={"measurements": (*kept, *replacements.values())})

    return report.model_copy(update={"experiments": tuple(of(e) for e in report.experiments)})


def ratio(value: float, low: float, high: float) -> Measurement:
    """A speed-up at batch 1."""
    interval = Interval(low=low, high=high, method="test")
    return Measurement(metric="speedup_p50", value=value, unit="x", at={"batch_size": 1}, interval=interval)


# -------------------------------------------------------------------------------------------- what may be said


def test_a_ratio_reads_as_a_factor_with_its_interval() -> None:
    found = cell(study_reports.study_report(), "int8-dynamic-onnxruntime", "speedup_p50")
    assert found.text == "1.80× [1.75, 1.85]"
    assert found.trend == "up"


@pytest.mark.parametrize(
    ("interval", "trend"), [((0.95, 1.2), "flat"), ((1.0, 1.2), "flat"), ((1.01, 1.2), "up"), ((0.7, 0.9), "down")]
)
def test_faster_and_slower_are_said_only_if_the_interval_leaves_out_1(
    interval: tuple[float, float], trend: str
) -> None:
    report = changed(study_reports.study_report(), "fp16", speedup_p50=ratio(1.05, *interval))
    assert cell(report, "fp16", "speedup_p50").trend == trend
    assert cell(report, "fp16", "latency_p50_ms").trend == trend  # the latency is judged by the paired ratio alone


def test_the_baseline_is_never_better_than_itself() -> None:
    report = changed(study_reports.study_report(), "fp32", speedup_p50=ratio(1.02, 1.01, 1.03))
    assert cell(report, "fp32", "speedup_p50").trend == ""


def test_accuracy_is_judged_by_the_paired_difference_in_points() -> None:
    found = cell(study_reports.study_report(), "int8-dynamic", "accuracy")
    assert (found.text, found.detail, found.trend) == ("0.884", "−1.2 pt [−2.0, −0.8]", "down")
    assert cell(study_reports.study_report(), "bf16", "accuracy").trend == "flat"


def test_sizes_are_counted_so_any_difference_is_one_but_memory_is_not() -> None:
    report = study_reports.study_report()
    assert cell(report, "int8-dynamic", "artifact_bytes").trend == "up"
    assert cell(report, "int8-dynamic", "rss_tree_peak_bytes").trend == "flat"
    assert cell(report, "int8-dynamic", "rss_tree_peak_bytes").text == "455"


def test_a_percentile_without_its_samples_shows_how_many_are_missing() -> None:
    found = cell(study_reports.study_report(), "fp16", "latency_p99_ms")
    assert (found.text, found.value) == ("insufficient (43 of 662)", None)


def test_an_experiment_without_a_metric_says_none_never_0() -> None:
    extra = Measurement(metric="spearman", value=0.8, unit="")
    report = changed(study_reports.study_report(), "fp16", spearman=extra)
    assert cell(report, "fp32", "spearman").text == "none"


def test_the_other_batch_size_has_its_own_numbers() -> None:
    report = study_reports.study_report()
    assert cell(report, "fp32", "latency_p50_ms", 8).text == "132"
    assert selectors.comparison(report, batch=8).batch == 8
    assert selectors.comparison(report, batch=3).batch == 1


def test_a_metric_of_a_later_version_is_shown_under_its_own_name() -> None:
    extra = Measurement(metric="moon_phase", value=0.5, unit="phases")
    report = changed(study_reports.study_report(), "fp16", moon_phase=extra)
    column = next(c for c in table(report, 1).columns if c.metric == "moon_phase")
    assert (column.title, column.unit, column.higher_is_better) == ("moon phase", "phases", None)


def test_columns_that_say_the_same_for_all_are_known() -> None:
    same = {c.metric for c in table(study_reports.study_report(), 1).columns if c.same}
    assert "parameters" in same
    assert "artifact_bytes" not in same


# -------------------------------------------------------------------------------------------------- frontier

POINTS = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.tuples(st.integers(-5, 5).map(float), st.integers(-5, 5).map(float)),
    min_size=1,
    max_size=12,
)


@given(POINTS, st.booleans(), st.booleans())
def test_the_frontier_is_what_no_other_point_beats(points: dict[str, tuple[float, float]], x: bool, y: bool) -> None:
    def better(a: tuple[float, float], b: tuple[float, float]) -> bool:
        ax, ay = (a[0] if x else -a[0], a[1] if y else -a[1])
        bx, by = (b[0] if x else -b[0], b[1] if y else -b[1])
        return ax >= bx and ay >= by and (ax > bx or ay > by)

    expected = {n for n, p in points.items() if not any(better(q, p) for q in points.values())}
    assert set(frontier(points, Axis("x", x), Axis("y", y))) == expected


def test_the_sweet_spot_and_the_frontier_of_the_real_study() -> None:
    compared = selectors.comparison(study_reports.study_report())
    assert compared.sweet == "int8-dynamic-onnxruntime"
    assert compared.pareto is not None
    assert compared.pareto.summary == (
        "Of 6 experiments by Latency p50 and Accuracy, int8-dynamic-onnxruntime and fp32-onnxruntime form the "
        "frontier: nothing beats them on both."
    )


# ------------------------------------------------------------------------------------------------ conditions


def test_different_conditions_are_named() -> None:
    report = study_reports.study_report()
    odd = report.experiments[1].model_copy(update={"environment": study_reports.environment(threads=1)})
    mixed = (report.experiments[0], odd, *report.experiments[2:])
    assert fingerprints.differences(report.experiments) == []
    assert fingerprints.differences(mixed) == ["fp32-onnxruntime: threads 1 instead of 2"]


def test_other_library_versions_are_named_one_by_one() -> None:
    report = study_reports.study_report()
    environment = report.experiments[0].environment
    assert environment is not None
    other = environment.model_copy(update={"libraries": {**environment.libraries, "torch": "2.12.0"}})
    mixed = (report.experiments[0].model_copy(update={"environment": other}), *report.experiments[1:])
    assert fingerprints.differences(mixed) == ["fp32: libraries torch 2.12.0 instead of 2.13.0"]


def test_a_runtime_that_brings_its_own_libraries_is_no_other_condition() -> None:
    report = study_reports.study_report()
    environment = report.experiments[1].environment
    assert environment is not None
    more = environment.model_copy(update={"libraries": {**environment.libraries, "onnx": "1.23.2"}})
    mixed = (report.experiments[0], report.experiments[1].model_copy(update={"environment": more}))
    assert fingerprints.differences(mixed) == []


def test_a_baseline_that_does_not_equal_itself_is_said() -> None:
    steady = study_reports.study_report()
    assert selectors.comparison(steady).unsteady == ""
    assert selectors.comparison(changed(steady, "fp32", speedup_p50=ratio(0.8, 0.7, 0.9))).unsteady == "[0.700, 0.900]"


def test_memory_that_no_experiment_has_is_not_shown_unless_asked_for() -> None:
    report = study_reports.study_report()
    for e in report.experiments:
        none = Measurement(metric="nvml_process_peak_bytes", value=None, unit="bytes", reason="it ran on the CPU")
        report = changed(report, e.experiment, nvml_process_peak_bytes=none)
    columns = {c.metric: c.shown for c in table(report, 1).columns}
    assert columns["nvml_process_peak_bytes"] is False
    assert columns["latency_p99_ms"] is True


# ---------------------------------------------------------------------------------------------------- limits


def test_limits_run_from_the_best_to_the_worst_value() -> None:
    found = {limit.metric: limit for limit in limits.limits(study_reports.study_report(), 1)}
    latency, accuracy = found["latency_p50_ms"], found["accuracy"]
    assert (latency.best, latency.worst, latency.at_most, latency.log) == (11.5, 183.0, True, True)
    assert (accuracy.best, accuracy.worst, accuracy.at_most) == (0.896, 0.884, False)


def test_what_is_undefined_passes_no_limit() -> None:
    row = next(r for r in limits.rows(study_reports.study_report(), 1) if r["name"] == "fp16")
    assert row["values"]["latency_p99_ms"] is None
    assert json.loads(json.dumps(row, allow_nan=False)) == row


# ----------------------------------------------------------------------------------------------------- forest


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_forest_axis_is_symmetric_and_keeps_order(a: float, b: float) -> None:
    on = forest.axis([a, b])
    assert on.x(1.0) == forest.WIDTH / 2
    assert math.isclose(on.x(a) + on.x(1 / a), forest.WIDTH, abs_tol=0.2)
    if a < b:
        assert on.x(a) <= on.x(b)
    assert 0 <= on.x(a) <= forest.WIDTH


def test_what_lies_beyond_the_axis_is_drawn_at_its_end() -> None:
    on = forest.axis([2.0])
    assert on.x(0.0) == forest.MARGIN
    assert on.x(1e9) == forest.WIDTH - forest.MARGIN


# ------------------------------------------------------------------------------------------------------ text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.8234, "1.82"),
        (104.4, "104"),
        (1143.2, "1,143"),
        (0.00424, "0.00424"),
        (3.1e-9, "3.1e-9"),
        (0, "0"),
        (-0.5, "−0.500"),
        (999.6, "1,000"),
        (0.9996, "1.00"),
        (float("nan"), "undefined"),
        (float("inf"), "undefined"),
        (None, "undefined"),
    ],
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (252, "4 min 12 s"), (3900, "1 h 05 min"), (None, "unknown")],
)
def test_durations_read_as_people_say_them(seconds: float | None, text: str) -> None:
    assert formatting.duration(seconds) == text


@given(st.lists(st.text(max_size=120), min_size=1, max_size=12, unique=True))
def test_labels_differ_wherever_names_differ(names: list[str]) -> None:
    made = formatting.labels(names)
    assert set(made) == set(names)
    assert len(set(made.values())) == len(names)


def test_names_of_200_characters_that_differ_at_the_end_are_told_apart_by_short_labels() -> None:
    names = [f"{'x' * 195}{n:05}" for n in range(120)]
    made = formatting.labels(names)
    assert len(set(made.values())) == 120
    assert max(len(label) for label in made.values()) <= formatting.NAME_WIDTH
    assert made[names[7]].endswith("00007")


@pytest.mark.django_db
def test_sixty_long_named_experiments_open_within_three_seconds(django_assert_max_num_queries: Any) -> None:
    """FC-097: names told apart, runs without a metric shown as none, a short link that opens the same view."""
    me = visitor()
    names = [f"{'run of the nightly sweep ' * 7}{'x' * 20}{n:05}" for n in range(60)]
    study = factories.study(me.team, tuple(names))
    factories.worker()
    for index, experiment in enumerate(study.experiments.order_by("index")):
        attempt = factories.running(experiment)
        extra = (Measurement(metric=f"own_metric_{index % 4}", value=float(index), unit="things"),)
        report = factories.report(experiment, measurements=(*factories.measurements(10 + index), *extra))
        services.report_record(attempt_id=attempt.pk, number=attempt.number, report=report)
    link = f"/studies/{study.pk}?x=latency_p50_ms&y=accuracy&differences=1&sort=latency_p50_ms:ascending"
    assert len(link) < 2000
    started = time.perf_counter()
    html = me.page(link)
    assert time.perf_counter() - started < 3
    assert all(f"x{n:05}" in html for n in range(60))
    assert ">none<" in html
    assert "…" in html
