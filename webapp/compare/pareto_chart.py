"""Any two metrics against each other: a pure function from a study's records to a Plotly figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.protocols import MetricDefinition
from experiments.records import Report, StudyReport
from experiments.verdict import at_batch
from webapp.compare import labelling
from webapp.compare.figures import Chart, axis, layout, plain, wants_log
from webapp.compare.pareto import Axis, frontier
from webapp.compare.points import COMPARED_BY, definition, metrics_of
from webapp.compare.table import text_of
from webapp.core import formatting

#: Beyond this many points only the frontier, the baseline and the sweet spot carry their names.
MAX_LABELS = 14
#: Characters of a name beside a point.
POINT_LABEL = 26


def axis_choices(report: StudyReport) -> list[MetricDefinition]:
    """Metrics that can be an axis: they have a direction and at least one experiment has a number."""
    have = {m.metric for e in report.experiments for m in e.measurements if m.value is not None}
    return [d for d in metrics_of(report.experiments) if d.higher_is_better is not None and d.name in have]


def default_axes(report: StudyReport) -> tuple[str, str] | None:
    """Latency against quality where the study has both, else the first two metrics that have a direction."""
    names = [d.name for d in axis_choices(report)]
    if len(names) < 2:
        return None
    x = next((n for n in ("tpot_ms", "latency_p50_ms", "artifact_bytes") if n in names), names[0])
    quality = ("accuracy", "perplexity", "spearman", "cosine_to_baseline", "kl_divergence_mean", "artifact_bytes")
    y = next((n for n in (*quality, *names) if n in names and n != x), names[1])
    return x, y


def pareto(report: StudyReport, x: str, y: str, batch: int | None, sweet: str | None = None) -> Chart:
    """Any two metrics against each other, with the frontier of those that nothing beats on both."""
    across, up = _known(report, x), _known(report, y)
    points: dict[str, tuple[float, float]] = {}
    left_out: list[str] = []
    for e in report.experiments:
        px, py = at_batch(e, x, batch), at_batch(e, y, batch)
        if px is None or py is None or px.value is None or py.value is None:
            left_out.append(e.experiment)
        else:
            points[e.experiment] = (px.value, py.value)
    best = frontier(points, Axis(x, bool(across.higher_is_better)), Axis(y, bool(up.higher_is_better)))
    names = formatting.labels(e.experiment for e in report.experiments)
    fx, fy = (formatting.scale(m.unit, m.group).factor for m in (across, up))
    shown = {name: (px * fx, py * fy) for name, (px, py) in points.items()}
    log_x, log_y = (wants_log([p[i] for p in shown.values()]) for i in (0, 1))
    traces: list[dict[str, Any]] = []
    if len(best) > 1:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [shown[n][0] for n in best],
                "y": [shown[n][1] for n in best],
                "line": {"color": "var(--steel)", "width": 1.5, "dash": "dot"},
                "hoverinfo": "skip",
                "name": "frontier",
            }
        )
    by_name = {e.experiment: e for e in report.experiments}
    bars = {name: {} if name == report.baseline else _bars(by_name[name], (x, y), (fx, fy), batch) for name in shown}
    ends_y = [end for name in shown for end in _ends(shown[name][1], bars[name].get("y"))]
    range_x = _range([p[0] for p in shown.values()], log_x)
    range_y = _range([end for end in ends_y if end > 0 or not log_y], log_y)
    ordered = sorted(shown, key=lambda n: (n != sweet, n != report.baseline, n not in best, shown[n]))
    marks = {name: _mark(name, report.baseline, sweet, best) for name in ordered}
    short = formatting.labels(ordered, POINT_LABEL)
    texts = [
        short[name] + marks[name].note if len(ordered) <= MAX_LABELS or marks[name].matters else "" for name in ordered
    ]
    at = [(_share(shown[n][0], range_x, log_x), _share(shown[n][1], range_y, log_y)) for n in ordered]
    for name, text, position in zip(ordered, texts, labelling.places(at, texts), strict=True):
        mark = marks[name]
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "markers+text" if text else "markers",
            "x": [shown[name][0]],
            "y": [shown[name][1]],
            "text": [plain(text)],
            "hovertext": [_hover(name, by_name[name], (across, up), batch)],
            "hoverinfo": "text",
            "textposition": position,
            "textfont": {"color": "var(--ink)", "size": 12},
            "marker": {
                "color": mark.colour,
                "symbol": mark.symbol,
                "size": mark.size,
                "line": {"color": mark.colour, "width": 2},
            },
            "cliponaxis": False,
            "name": plain(name),
            "meta": {"experiment": name, "role": mark.note.strip(" ()")},
        }
        for direction, bar in bars[name].items():
            trace[f"error_{direction}"] = {**bar, "color": mark.colour, "thickness": 1, "width": 3}
        traces.append(trace)
    figure = {
        "data": traces,
        "layout": layout(
            xaxis=axis(_axis_title(across, log_x), log=log_x, decades=_length(range_x), range=range_x),
            yaxis=axis(_axis_title(up, log_y), log=log_y, decades=_length(range_y), range=range_y),
            hovermode="closest",
            meta={"x": x, "y": y, "xFactor": fx, "yFactor": fy},
        ),
    }
    summary = _pareto_summary(across, up, [names[n] for n in best], [names[n] for n in left_out], len(points))
    body = tuple(
        (
            name,
            text_of(at_batch(e, x, batch), across) if name in points else "none",  # type: ignore[arg-type]
            text_of(at_batch(e, y, batch), up) if name in points else "none",  # type: ignore[arg-type]
            "on the frontier" if name in best else "beaten" if name in points else "not shown",
        )
        for e in report.experiments
        for name in (e.experiment,)
    )
    return Chart(
        key="pareto",
        title=f"{across.title} against {up.title}",
        summary=summary,
        figure=figure,
        head=("Experiment", _with_unit(across), _with_unit(up), "Frontier"),
        body=body,
    )


def _known(report: StudyReport, metric: str) -> MetricDefinition:
    unit = next((m.unit for e in report.experiments for m in e.measurements if m.metric == metric), "")
    return definition(metric, unit)


def _with_unit(metric: MetricDefinition) -> str:
    unit = formatting.scale(metric.unit, metric.group).unit
    return f"{metric.title}, {unit}" if unit else metric.title


def _axis_title(metric: MetricDefinition, log: bool) -> str:
    better = (
        "" if metric.higher_is_better is None else "more is better" if metric.higher_is_better else "less is better"
    )
    return f"{_with_unit(metric)}{' (log)' if log else ''}: {better}"


def _hover(name: str, report: Report, metrics: Sequence[MetricDefinition], batch: int | None) -> str:
    lines = [f"<b>{plain(name)}</b>"]
    for metric in metrics:
        found = at_batch(report, metric.name, batch)
        if found is not None:
            unit = formatting.scale(metric.unit, metric.group).unit
            lines.append(plain(f"{metric.title}: {text_of(found, metric)} {unit}".rstrip()))
    return "<br>".join(lines)


@dataclass(frozen=True)
class _Mark:
    """How a point is drawn: shape as well as colour says what it is."""

    colour: str
    symbol: str
    size: int
    note: str = ""
    matters: bool = True


def _mark(name: str, baseline: str, sweet: str | None, best: Sequence[str]) -> _Mark:
    if name == sweet:
        return _Mark("var(--brass)", "star", 16, " (sweet spot)")
    if name == baseline:
        return _Mark("var(--ink)", "square", 11, " (baseline)")
    if name in best:
        return _Mark("var(--steel)", "circle", 11)
    return _Mark("var(--unsure)", "circle-open", 10, matters=False)


def _bars(
    report: Report, metrics: tuple[str, str], factors: tuple[float, float], batch: int | None
) -> dict[str, dict[str, Any]]:
    found = {d: _error(report, m, batch, f) for d, m, f in zip("xy", metrics, factors, strict=True)}
    return {direction: bar for direction, bar in found.items() if bar is not None}


def _ends(value: float, bar: dict[str, Any] | None) -> tuple[float, ...]:
    return (value,) if bar is None else (value - bar["arrayminus"][0], value, value + bar["array"][0])


def _error(report: Report, metric: str, batch: int | None, factor: float) -> dict[str, Any] | None:
    """How far the value may be off: beside the baseline where a paired difference says so, else by itself."""
    found = at_batch(report, COMPARED_BY.get(metric, ""), batch)
    if found is None or definition(found.metric).unit == "x":
        found = at_batch(report, metric, batch)
    if found is None or found.interval is None or found.value is None:
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, (found.interval.high - found.value) * factor)],
        "arrayminus": [max(0.0, (found.value - found.interval.low) * factor)],
    }


def _range(values: Sequence[float], log: bool, margin: float = 0.12) -> list[float] | None:
    """Room around the points, so that their names fit."""
    if not values:
        return None
    low, high = min(values), max(values)
    if log:
        low, high = math.log10(low), math.log10(high)
    spread = (high - low) or (abs(high) * 0.2) or 1.0
    return [low - spread * margin, high + spread * margin]


def _length(span: list[float] | None) -> float:
    return span[1] - span[0] if span else 0.0


def _share(value: float, span: list[float] | None, log: bool) -> float:
    """Where ``value`` lies between the ends of an axis, 0 to 1."""
    if span is None:
        return 0.5
    at = math.log10(value) if log else value
    return (at - span[0]) / ((span[1] - span[0]) or 1.0)


def _pareto_summary(
    across: MetricDefinition, up: MetricDefinition, best: list[str], left_out: list[str], shown: int
) -> str:
    if not shown:
        return "No experiment has a number for both metrics."
    verb = "is" if len(best) == 1 else "form"
    tail = "better than all others on both" if len(best) == 1 else "the frontier: nothing beats them on both"
    text = (
        f"Of {shown} experiment{'s' if shown != 1 else ''} by {across.title} and {up.title}, "
        f"{formatting.sentence_list(best)} {verb} {tail}."
    )
    if left_out:
        text += f" Not shown, since a number is missing: {formatting.sentence_list(left_out)}."
    return text
