"""All measurements of one experiment as rows of a table, and the sentence above them."""

from __future__ import annotations

from dataclasses import dataclass

from experiments import catalog
from experiments.records import Measurement, Report
from experiments.verdict import SPEED
from webapp.compare.points import definition
from webapp.core import formatting


@dataclass(frozen=True)
class MeasuredRow:
    """One measurement as text."""

    metric: str
    title: str
    definition: str
    at: str
    value: str
    unit: str
    interval: str
    n: str
    note: str
    missing: bool


def rows(report: Report) -> list[MeasuredRow]:
    """Every measurement in the catalogue's order; undefined ones come last, with their reason."""
    order = {name: index for index, name in enumerate(catalog.definitions())}
    return [
        _row(m) for m in sorted(report.measurements, key=lambda m: (m.value is None, order.get(m.metric, len(order))))
    ]


def _row(m: Measurement) -> MeasuredRow:
    metric = definition(m.metric, m.unit)
    shown = formatting.scale(metric.unit, metric.group)
    interval = ""
    if m.interval is not None:
        interval = formatting.bracket(m.interval.low * shown.factor, m.interval.high * shown.factor)
    return MeasuredRow(
        metric=m.metric,
        title=metric.title,
        definition=metric.definition,
        at=", ".join(f"{key.replace('_', ' ')} {value}" for key, value in m.at.items()),
        value=m.reason or "undefined" if m.value is None else formatting.number(m.value * shown.factor),
        unit="" if m.value is None else shown.unit,
        interval=interval,
        n=f"{m.n:,}" if m.n is not None else "",
        note=m.note or "",
        missing=m.value is None,
    )


def sentence(report: Report) -> str:
    """The experiment's result in one sentence; empty if there is none."""
    if report.status != "succeeded":
        return ""
    speed, latency = report.find(SPEED), report.find("latency_p50_ms")
    if latency is None or latency.value is None:
        return f"{report.experiment} has a result, but no latency."
    own = f"{formatting.number(latency.value)} ms at p50"
    if report.experiment == report.baseline:
        text = f"{report.experiment} is the baseline: {own}"
        if speed is not None and speed.interval is not None:
            bracket = formatting.bracket(speed.interval.low, speed.interval.high)
            text += f"; against itself {bracket}, the study's noise floor"
        return f"{text}."
    if speed is None or speed.value is None:
        why = f" ({speed.reason})" if speed is not None and speed.reason else ""
        return f"{report.experiment} takes {own}; it could not be paired with {report.baseline}{why}."
    interval = speed.interval
    times = formatting.ratio(speed.value) + (f" {formatting.bracket(interval.low, interval.high)}" if interval else "")
    if interval is None or interval.contains(1.0):
        return f"{report.experiment} can't be told apart from {report.baseline} in speed: {times}, {own}."
    word = "faster" if interval.low > 1 else "slower"
    return f"{report.experiment} is {word} than {report.baseline}: {times} its speed, {own}."


def ceilings(report: Report) -> str:
    """The machine's limits in words."""
    found = report.environment.ceilings if report.environment else None
    if found is None:
        return ""
    parts = [f"{formatting.number(found.copy_bytes_per_s / 1e9)} GB/s copy"]
    parts += [f"{formatting.number(flops / 1e9)} GFLOP/s {dtype}" for dtype, flops in found.gemm_flops_per_s.items()]
    return ", ".join(parts)
