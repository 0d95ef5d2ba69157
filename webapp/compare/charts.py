"""Records to Plotly figures: pure functions that build plain dictionaries.

Colours are written as ``var(--steel)``; the page's script puts in the theme's colours, so one figure serves light
and dark. Every name is escaped here, since Plotly reads a small markup in labels. Every chart carries a sentence
that says what it shows and the same numbers as a table.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.protocols import MetricDefinition
from experiments.records import Report, StudyReport
from experiments.verdict import at_batch
from webapp.compare import labelling
from webapp.compare.pareto import Axis, frontier
from webapp.compare.points import COMPARED_BY, definition, metrics_of
from webapp.compare.table import text_of
from webapp.core import formatting

#: Order statistics kept per experiment; enough for any box or curve on a screen.
MAX_SAMPLES = 300
#: Beyond this many points only the frontier, the baseline and the sweet spot carry their names.
MAX_LABELS = 14

#: Characters of a name beside a point.
POINT_LABEL = 26

Figure = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A figure, one sentence on what it shows, and its data as a table."""

    key: str
    title: str
    summary: str
    figure: Figure
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]


def plain(text: str) -> str:
    """A name as Plotly shows it literally."""
    return html.escape(text, quote=False)


def _layout(**extra: Any) -> dict[str, Any]:
    font = {"color": "var(--soft)", "size": 12, "family": "var(--font)"}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": font,
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "showlegend": False,
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--edge)", "font": {"color": "var(--ink)"}},
        **extra,
    }


def _axis(title: str = "", *, log: bool = False, decades: float = 0.0, **extra: Any) -> dict[str, Any]:
    axis = {
        "title": {"text": plain(title), "font": {"size": 12}},
        "gridcolor": "var(--line)",
        "linecolor": "var(--line)",
        "zerolinecolor": "var(--line)",
        "automargin": True,
        **extra,
    }
    if log:
        axis |= {"type": "log", "dtick": "D2" if decades < 2.2 else 1, "tickformat": "~r", "minor": {"showgrid": False}}
    return axis


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
    log_x, log_y = (_wants_log([p[i] for p in shown.values()]) for i in (0, 1))
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
        "layout": _layout(
            xaxis=_axis(_axis_title(across, log_x), log=log_x, decades=_length(range_x), range=range_x),
            yaxis=_axis(_axis_title(up, log_y), log=log_y, decades=_length(range_y), range=range_y),
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


def _wants_log(values: Sequence[float]) -> bool:
    positive = [v for v in values if v > 0]
    return len(positive) == len(values) > 1 and max(positive) / min(positive) >= 8


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


def latency(report: StudyReport, batch: int | None) -> Chart | None:
    """How each experiment's request times are spread, from all samples; None if no samples were kept."""
    names = formatting.labels(e.experiment for e in report.experiments)
    found: list[tuple[str, list[float], int]] = []
    for e in report.experiments:
        samples = next(
            (
                m.samples
                for m in e.measurements
                if m.samples and m.metric.startswith("latency") and m.at.get("batch_size", batch) == batch
            ),
            None,
        )
        if samples:
            found.append((e.experiment, sorted(samples), len(samples)))
    if not found:
        return None
    traces = [
        {
            "type": "box",
            "orientation": "h",
            "x": _thin(samples),
            "y": [plain(names[name])] * len(_thin(samples)),
            "name": plain(name),
            "boxpoints": "outliers",
            "marker": {"color": "var(--steel)" if name != report.baseline else "var(--ink)", "size": 3},
            "line": {"width": 1.5},
            "hoverinfo": "x",
        }
        for name, samples, _ in reversed(found)
    ]
    log = _wants_log([s[len(s) // 2] for _, s, _ in found])
    decades = math.log10(max(s[-1] for _, s, _ in found) / min(s[0] for _, s, _ in found)) if log else 0.0
    medians = {name: samples[(len(samples) - 1) // 2] for name, samples, _ in found}
    quickest = min(medians, key=lambda n: medians[n])
    spread = max(found, key=lambda f: f[1][-1] / f[1][(len(f[1]) - 1) // 2])
    return Chart(
        key="latency",
        title="Latency, request by request",
        summary=(
            f"{names[quickest]} has the lowest median, {formatting.number(medians[quickest])} ms; the longest tail, "
            f"by slowest over median, is that of {names[spread[0]]}: "
            f"{formatting.ratio(spread[1][-1] / medians[spread[0]])}."
        ),
        figure={
            "data": traces,
            "layout": _layout(
                xaxis=_axis(f"latency, ms{' (log)' if log else ''}: less is better", log=log, decades=decades),
                yaxis=_axis(tickfont={"color": "var(--ink)"}),
                height=_height(len(found)),
            ),
        },
        head=("Experiment", "Samples", "Fastest, ms", "Quarter, ms", "Median, ms", "Three quarters, ms", "Slowest, ms"),
        body=tuple(
            (name, f"{n:,}", *(formatting.number(_quantile(samples, q)) for q in (0, 0.25, 0.5, 0.75, 1)))
            for name, samples, n in found
        ),
    )


def _thin(samples: list[float]) -> list[float]:
    """At most ``MAX_SAMPLES`` evenly spaced order statistics; the extremes stay."""
    if len(samples) <= MAX_SAMPLES:
        return samples
    step = (len(samples) - 1) / (MAX_SAMPLES - 1)
    return [samples[round(i * step)] for i in range(MAX_SAMPLES)]


def _quantile(samples: list[float], share: float) -> float:
    return samples[round(share * (len(samples) - 1))]


def _height(rows: int) -> int:
    return max(220, 90 + 34 * rows)


#: Who owns the memory; the same colours and patterns in every study.
OWNERS = (
    ("rss_tree_peak_bytes", "whole process, peak", "var(--line)", ""),
    ("weights_bytes", "weights in memory", "var(--steel)", ""),
    ("artifact_bytes", "files on disk", "var(--brass)", "/"),
    ("torch_peak_allocated_bytes", "device, allocated", "var(--good)", "."),
    ("torch_peak_reserved_bytes", "device, reserved", "var(--soft)", "x"),
    ("nvml_process_peak_bytes", "device, whole process", "var(--unsure)", "-"),
)


def memory(report: StudyReport, batch: int | None) -> Chart | None:
    """Whose memory it is, side by side; None if nothing was measured."""
    names = formatting.labels(e.experiment for e in report.experiments)
    rows = [e for e in report.experiments if any(_bytes(e, owner, batch) for owner, *_ in OWNERS)]
    owners = [o for o in OWNERS if any(_bytes(e, o[0], batch) for e in rows)]
    if not rows or not owners:
        return None
    mib = 1 / 2**20
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": title,
            "y": [plain(names[e.experiment]) for e in reversed(rows)],
            "x": [(_bytes(e, owner, batch) or 0.0) * mib or None for e in reversed(rows)],
            "marker": {"color": colour, "pattern": {"shape": shape}, "line": {"color": "var(--edge)", "width": 1}},
            "hovertemplate": "%{x:,.3~r} MiB<extra></extra>",
        }
        for owner, title, colour, shape in reversed(owners)
    ]
    return Chart(
        key="memory",
        title="Memory, by owner",
        summary=_least(report, rows, owners, names, batch),
        figure={
            "data": traces,
            "layout": _layout(
                barmode="group",
                bargap=0.25,
                showlegend=True,
                legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "reversed"},
                xaxis=_axis("MiB: less is better"),
                yaxis=_axis(tickfont={"color": "var(--ink)"}),
                height=_height(len(rows)) + 16 * len(rows) * (len(owners) - 1) + 30,
            ),
        },
        head=("Experiment", *(f"{title}, MiB" for _, title, *_ in owners)),
        body=tuple(
            (
                e.experiment,
                *(
                    formatting.number(value * mib) if (value := _bytes(e, owner, batch)) is not None else "none"
                    for owner, *_ in owners
                ),
            )
            for e in rows
        ),
    )


def _bytes(report: Report, metric: str, batch: int | None) -> float | None:
    found = at_batch(report, metric, batch)
    return found.value if found is not None else None


def _least(
    report: StudyReport,
    rows: Sequence[Report],
    owners: Sequence[tuple[str, str, str, str]],
    names: Mapping[str, str],
    batch: int | None,
) -> str:
    owner, title, *_ = owners[0]
    have = {e.experiment: value for e in rows if (value := _bytes(e, owner, batch)) is not None}
    least = min(have, key=lambda n: have[n])
    text = f"{names[least]} needs the least ({title}): {formatting.number(have[least] / 2**20)} MiB"
    own = have.get(report.baseline)
    if own and least != report.baseline:
        text += f", {formatting.ratio(have[least] / own)} of the baseline"
    return text + "."


def cost(report: StudyReport, batch: int | None) -> Chart | None:
    """What the same work costs; None if no cost is known."""
    names = formatting.labels(e.experiment for e in report.experiments)
    metric = next(
        (
            d
            for d in metrics_of(report.experiments)
            if d.group == "cost" and any(_bytes(e, d.name, batch) is not None for e in report.experiments)
        ),
        None,
    )
    if metric is None:
        return None
    rows = {e.experiment: v for e in report.experiments if (v := _bytes(e, metric.name, batch)) is not None}
    cheapest = min(rows, key=lambda n: rows[n])
    note = next((m.note for e in report.experiments if (m := at_batch(e, metric.name, batch)) and m.note), None)
    own = rows.get(report.baseline)
    summary = f"{names[cheapest]} is the cheapest: ${formatting.number(rows[cheapest])}"
    if own and cheapest != report.baseline:
        summary += f" where the baseline costs ${formatting.number(own)}"
    return Chart(
        key="cost",
        title=metric.title,
        summary=f"{summary}.{' ' + note if note else ''}",
        figure={
            "data": [
                {
                    "type": "bar",
                    "orientation": "h",
                    "y": [plain(names[n]) for n in reversed(rows)],
                    "x": list(reversed(rows.values())),
                    "text": [f"${formatting.number(v)}" for v in reversed(rows.values())],
                    "textposition": "auto",
                    "insidetextfont": {"color": "var(--on-steel)"},
                    "outsidetextfont": {"color": "var(--ink)"},
                    "marker": {
                        "color": ["var(--soft)" if n == report.baseline else "var(--steel)" for n in reversed(rows)]
                    },
                    "hoverinfo": "text",
                    "width": 0.6,
                }
            ],
            "layout": _layout(
                xaxis=_axis("US dollars: less is better", rangemode="tozero", exponentformat="none", nticks=5),
                yaxis=_axis(tickfont={"color": "var(--ink)"}),
                height=_height(len(rows)),
            ),
        },
        head=("Experiment", f"{metric.title}, $"),
        body=tuple((name, formatting.number(value)) for name, value in rows.items()),
    )
