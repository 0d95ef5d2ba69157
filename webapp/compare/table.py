"""The comparison table: which columns a study has, and what each cell says beside the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from experiments.protocols import MetricDefinition
from experiments.records import Interval, Measurement, Report, StudyReport
from experiments.verdict import SPEED, at_batch
from webapp.compare import forest
from webapp.compare.points import COMPARED_BY, SPEEDUPS, baseline_of, definition, metrics_of
from webapp.core import formatting

Trend = Literal["up", "down", "flat", ""]

#: Shown unless the reader chooses otherwise; the rest waits in the columns chooser.
SHOWN = (
    "speedup_p50",
    "latency_p50_ms",
    "latency_p99_ms",
    "throughput_samples_per_s",
    "ttft_ms",
    "tpot_ms",
    "output_tokens_per_s",
    "rss_tree_peak_bytes",
    "nvml_process_peak_bytes",
    "artifact_bytes",
    "accuracy",
    "perplexity",
    "spearman",
    "flips",
    "top1_agreement",
    "kl_divergence_mean",
    "cosine_to_baseline",
    "cost_per_1k_requests_usd",
    "cost_per_1m_tokens_usd",
    "share_of_limit",
    "compile_s",
    "adapters_memory_ratio",
    "adapter_switch_ms",
    "adapters_mixed_slowdown",
)

_BELOW = frozenset(COMPARED_BY.values()) - frozenset(SPEEDUPS)


@dataclass(frozen=True)
class Column:
    """One metric at the table's batch size."""

    metric: str
    title: str
    unit: str
    group: str
    definition: str
    higher_is_better: bool | None
    shown: bool
    same: bool
    is_ratio: bool


@dataclass(frozen=True)
class Cell:
    """What one experiment says in one column. ``value`` is the stored number, for sorting and limits."""

    metric: str
    text: str
    detail: str = ""
    trend: Trend = ""
    value: float | None = None
    reason: str = ""
    forest: forest.Forest | None = None
    shown: bool = True
    group: str = ""


@dataclass(frozen=True)
class Row:
    """One experiment: its cells, or why it has none."""

    name: str
    label: str
    report: Report
    is_baseline: bool
    cells: tuple[Cell, ...]
    is_sweet: bool = False

    @property
    def how(self) -> str:
        """Recipe, runtime and what the artifact really is."""
        variant = self.report.spec.get("variant") or {}
        recipe = " \u2192 ".join(step.get("technique", "?") for step in variant.get("recipe") or ())
        runtime = (variant.get("runtime") or {}).get("kind", "")
        layout = (variant.get("layout") or {}).get("kind", "")
        label = self.report.artifact.label.value if self.report.artifact else ""
        parts = [recipe, runtime, "" if layout == "single" else layout, label]
        return " \u00b7 ".join(part for part in parts if part)


@dataclass(frozen=True)
class Table:
    """All experiments over the columns that the study has."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    floor: Interval | None

    @property
    def groups(self) -> dict[str, list[Column]]:
        """Columns by group, for the chooser."""
        grouped: dict[str, list[Column]] = {}
        for column in self.columns:
            grouped.setdefault(column.group, []).append(column)
        return grouped


def noise_floor(report: StudyReport, batch: int | None) -> Interval | None:
    """The baseline against itself: the interval within which a ratio says nothing."""
    baseline = baseline_of(report)
    own = at_batch(baseline, SPEED, batch) if baseline else None
    return own.interval if own else None


def table(report: StudyReport, batch: int | None, sweet: str | None = None) -> Table:
    """The table of a study at one batch size; ``sweet`` names the row to mark."""
    found = [d for d in metrics_of(report.experiments) if d.name not in _BELOW]
    found.sort(key=lambda d: (d.name not in SHOWN, SHOWN.index(d.name) if d.name in SHOWN else 0))
    baseline = baseline_of(report)
    floor = noise_floor(report, batch)
    short = formatting.labels(e.experiment for e in report.experiments)
    points = {d.name: {e.experiment: at_batch(e, d.name, batch) for e in report.experiments} for d in found}
    found = [d for d in found if any(points[d.name].values())]
    ratios = {d.name: d.name in SPEEDUPS for d in found}
    axes = {
        d.name: forest.axis(
            end
            for m in points[d.name].values()
            if m is not None and m.value is not None
            for end in ((m.interval.low, m.interval.high) if m.interval else (m.value,))
        )
        for d in found
        if ratios[d.name]
    }
    columns = tuple(
        Column(
            metric=d.name,
            title=d.title,
            unit=formatting.scale(d.unit, d.group).unit,
            group=d.group,
            definition=d.definition,
            higher_is_better=d.higher_is_better,
            shown=d.name in SHOWN and any(_worth_showing(m) for m in points[d.name].values()),
            same=len({m.value if m else None for m in points[d.name].values()}) == 1,
            is_ratio=ratios[d.name],
        )
        for d in found
    )
    if not any(column.shown for column in columns):
        columns = tuple(Column(**{**vars(column), "shown": True}) for column in columns)
    rows = tuple(
        Row(
            name=e.experiment,
            label=short[e.experiment],
            report=e,
            is_baseline=e.experiment == report.baseline,
            is_sweet=e.experiment == sweet,
            cells=tuple(
                _cell(column, d, e, baseline, batch, axes.get(d.name), floor)
                for column, d in zip(columns, found, strict=True)
            ),
        )
        for e in report.experiments
    )
    return Table(columns=columns, rows=rows, floor=floor)


def _worth_showing(found: Measurement | None) -> bool:
    """A number, or a percentile that only lacks samples; not a memory that this machine does not have."""
    return found is not None and (found.value is not None or (found.reason or "").startswith("insufficient"))


def _cell(
    column: Column,
    metric: MetricDefinition,
    report: Report,
    baseline: Report | None,
    batch: int | None,
    axis: forest.Axis | None,
    floor: Interval | None,
) -> Cell:
    found = at_batch(report, metric.name, batch)
    if found is None:
        return Cell(column.metric, "none", reason="This experiment has no such number.", shown=column.shown)
    if found.value is None:
        return Cell(column.metric, found.reason or "undefined", reason=found.note or "", shown=column.shown)
    is_baseline = baseline is not None and report.experiment == baseline.experiment
    if axis is not None:
        trend = "" if is_baseline else _by_interval(found.interval, 1.0, higher_is_better=True)
        return Cell(
            column.metric,
            _ratio_text(found.value, found.interval),
            trend=trend,
            value=found.value,
            forest=forest.forest(axis, found.value, found.interval, floor),
            shown=column.shown,
        )
    detail, trend = _beside_baseline(metric, report, baseline, batch, found)
    if is_baseline or not detail:
        trend = ""
    if is_baseline or not detail or COMPARED_BY.get(metric.name) in SPEEDUPS:
        detail = _interval_text(found, metric)  # the ratio has a column of its own
    return Cell(
        column.metric, text_of(found, metric), detail=detail, trend=trend, value=found.value, shown=column.shown
    )


def text_of(measurement: Measurement, metric: MetricDefinition) -> str:
    """A value in the unit in which its column is shown."""
    if measurement.value is None:
        return measurement.reason or "undefined"
    return _number(measurement.value, metric)


def _number(value: float, metric: MetricDefinition) -> str:
    if metric.unit == "share" and metric.group == "quality":
        return formatting.score(value)
    return formatting.number(value * formatting.scale(metric.unit, metric.group).factor)


def _interval_text(measurement: Measurement, metric: MetricDefinition) -> str:
    if measurement.interval is None:
        return ""
    return f"[{_number(measurement.interval.low, metric)}, {_number(measurement.interval.high, metric)}]"


def _beside_baseline(
    metric: MetricDefinition, report: Report, baseline: Report | None, batch: int | None, found: Measurement
) -> tuple[str, Trend]:
    """The cell's second line, and whether it may be called better or worse."""
    compared = at_batch(report, COMPARED_BY.get(metric.name, ""), batch)
    if compared is not None and compared.value is not None:
        meaning = definition(compared.metric, compared.unit)
        if meaning.unit == "x":
            trend = _by_interval(compared.interval, 1.0, meaning.higher_is_better)
            if compared.interval is None:
                trend = _exact(metric, compared.value, 1.0)
            return _ratio_text(compared.value, compared.interval), trend
        return _points_text(compared), _by_interval(compared.interval, 0.0, meaning.higher_is_better)
    own = at_batch(baseline, metric.name, batch) if baseline else None
    if metric.group in {"memory", "size", "cost"} and own is not None and own.value and found.value is not None:
        return formatting.ratio(found.value / own.value), _exact(metric, found.value, own.value)
    return "", ""


def _ratio_text(value: float, interval: Interval | None) -> str:
    text = formatting.ratio(value)
    return f"{text} {formatting.bracket(interval.low, interval.high)}" if interval else text


def _points_text(difference: Measurement) -> str:
    """A difference of shares in percentage points, other differences in their unit."""
    factor, unit = (100.0, " pt") if definition(difference.metric, difference.unit).unit == "share" else (1.0, "")
    assert difference.value is not None
    text = f"{formatting.signed(difference.value * factor, decimals=1)}{unit}"
    if difference.interval is None:
        return text
    low, high = (
        formatting.signed(end * factor, decimals=1) for end in (difference.interval.low, difference.interval.high)
    )
    return f"{text} [{low}, {high}]"


def _by_interval(interval: Interval | None, neutral: float, higher_is_better: bool | None) -> Trend:
    """Better or worse is said only where the interval leaves out no difference."""
    if interval is None or higher_is_better is None or interval.contains(neutral):
        return "flat"
    return "up" if (interval.low > neutral) == higher_is_better else "down"


def _exact(metric: MetricDefinition, value: float, own: float) -> Trend:
    """Sizes are counted, not sampled: any difference is one. Other groups say nothing without an interval."""
    if metric.group != "size" or metric.higher_is_better is None or value == own:
        return "flat"
    return "up" if (value > own) == metric.higher_is_better else "down"
