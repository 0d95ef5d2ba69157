"""Everything that a comparison page says, made from a study's report alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments import textbook
from experiments.protocols import MetricDefinition
from experiments.records import Report, StudyReport
from experiments.verdict import sweet_spot
from webapp.compare import charts, fingerprints, limits, pareto_chart
from webapp.compare.figures import Chart
from webapp.compare.points import batch_sizes
from webapp.compare.table import Table, table
from webapp.core import formatting


@dataclass(frozen=True)
class Comparison:
    """A study's experiments side by side at one batch size."""

    report: StudyReport
    batch: int | None
    batches: tuple[int, ...]
    sweet: str | None
    table: Table
    pareto: Chart | None
    x: str
    y: str
    axes: tuple[MetricDefinition, ...]
    charts: tuple[Chart, ...]
    limits: tuple[limits.Limit, ...]
    limit_data: dict[str, Any]
    conditions: tuple[str, ...]
    textbook: tuple[textbook.Row, ...]

    @property
    def unsteady(self) -> str:
        """What the baseline came out as against itself, if that is not 1: then no ratio of the study can be trusted."""
        floor = self.table.floor
        if floor is None or floor.contains(1.0):
            return ""
        return formatting.bracket(floor.low, floor.high)

    @property
    def headline(self) -> tuple[str, str]:
        """The verdict's first sentence, and the rest."""
        first, dot, rest = self.report.verdict.partition(". ")
        return first + ("." if dot else ""), rest

    @property
    def succeeded(self) -> tuple[Report, ...]:
        """The experiments that have numbers."""
        return tuple(e for e in self.report.experiments if e.status == "succeeded")

    @property
    def figures(self) -> dict[str, Any]:
        """Chart key -> figure, for the page's script."""
        every = [*([self.pareto] if self.pareto else []), *self.charts]
        return {chart.key: chart.figure for chart in every}


def comparison(report: StudyReport, *, batch: int | None = None, x: str = "", y: str = "") -> Comparison:
    """The comparison of a study; unknown or missing choices fall back to the first batch size and default axes."""
    batches = batch_sizes(report)
    if batch not in batches:
        batch = batches[0] if batches else None
    axes = pareto_chart.axis_choices(report)
    known = {d.name for d in axes}
    default = pareto_chart.default_axes(report)
    if default is not None:
        x = x if x in known else default[0]
        y = y if y in known and y != x else next(n for n in (default[1], default[0]) if n != x)
    enough = sum(e.status == "succeeded" for e in report.experiments) > 1
    best = sweet_spot(report, batch)
    sweet = best.experiment if best else None
    offered = limits.limits(report, batch)
    others = (charts.latency(report, batch), charts.memory(report, batch), charts.cost(report, batch))
    return Comparison(
        report=report,
        batch=batch,
        batches=tuple(batches),
        sweet=sweet,
        table=table(report, batch, sweet),
        pareto=pareto_chart.pareto(report, x, y, batch, sweet) if default is not None and enough else None,
        x=x,
        y=y,
        axes=tuple(axes),
        charts=tuple(chart for chart in others if chart is not None),
        limits=tuple(offered),
        limit_data={"limits": [limit.data() for limit in offered], "rows": limits.rows(report, batch)},
        conditions=tuple(fingerprints.differences(report.experiments)),
        textbook=textbook.rows(report, batch),
    )
