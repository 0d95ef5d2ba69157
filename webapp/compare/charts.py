"""The charts beside the table: latency, memory, cost. Pure functions from a study's records to Plotly figures.

Colours are written as ``var(--steel)``; the page's script puts in the theme's colours, so one figure serves light
and dark. Every name is escaped, since Plotly reads a small markup in labels. Every chart carries a sentence that says
what it shows and the same numbers as a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.records import Report, StudyReport
from experiments.verdict import at_batch
from webapp.compare.figures import Chart, axis, layout, plain, wants_log
from webapp.compare.points import metrics_of
from webapp.core import formatting

#: Order statistics kept per experiment; enough for any box or curve on a screen.
MAX_SAMPLES = 300


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
    log = wants_log([s[len(s) // 2] for _, s, _ in found])
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
            "layout": layout(
                xaxis=axis(f"latency, ms{' (log)' if log else ''}: less is better", log=log, decades=decades),
                yaxis=axis(tickfont={"color": "var(--ink)"}),
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
            "layout": layout(
                barmode="group",
                bargap=0.25,
                showlegend=True,
                legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "reversed"},
                xaxis=axis("MiB: less is better"),
                yaxis=axis(tickfont={"color": "var(--ink)"}),
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
            "layout": layout(
                xaxis=axis("US dollars: less is better", rangemode="tozero", exponentformat="none", nticks=5),
                yaxis=axis(tickfont={"color": "var(--ink)"}),
                height=_height(len(rows)),
            ),
        },
        head=("Experiment", f"{metric.title}, $"),
        body=tuple((name, formatting.number(value)) for name, value in rows.items()),
    )
