"""What must hold: the limits that a reader may drag, and the numbers that the page's script holds against them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from experiments.records import StudyReport
from experiments.verdict import at_batch
from webapp.compare.points import baseline_of, definition
from webapp.core import formatting

#: The metrics that may be limited, in display order; the first of each group that the study has is offered.
OFFERED = (
    ("latency_p50_ms",),
    ("tpot_ms",),
    ("nvml_process_peak_bytes", "rss_tree_peak_bytes"),
    ("artifact_bytes",),
    ("accuracy", "f1_macro", "perplexity", "spearman", "cosine_to_baseline"),
    ("cost_per_1m_tokens_usd", "cost_per_1k_requests_usd"),
)
STEPS = 100


@dataclass(frozen=True)
class Limit:
    """One slider: positions 0 to 100 map to limits between the best and the worst value, both included."""

    metric: str
    title: str
    unit: str
    at_most: bool
    best: float
    worst: float
    log: bool

    def data(self) -> dict[str, Any]:
        """What the page's script needs."""
        return {**vars(self), "steps": STEPS}


def limits(report: StudyReport, batch: int | None) -> list[Limit]:
    """A slider for each offered metric in which the experiments differ."""
    made = []
    for names in OFFERED:
        for name in names:
            values = [
                m.value
                for e in report.experiments
                if e.status == "succeeded" and (m := at_batch(e, name, batch)) is not None and m.value is not None
            ]
            if len(values) < 2 or min(values) == max(values):
                continue
            unit = next(m.unit for e in report.experiments for m in e.measurements if m.metric == name)
            metric = definition(name, unit)
            if metric.higher_is_better is None:
                continue
            shown = formatting.scale(metric.unit, metric.group)
            low, high = min(values) * shown.factor, max(values) * shown.factor
            made.append(
                Limit(
                    metric=name,
                    title=metric.title,
                    unit=shown.unit,
                    at_most=not metric.higher_is_better,
                    best=high if metric.higher_is_better else low,
                    worst=low if metric.higher_is_better else high,
                    log=low > 0 and high / low >= 8 and not metric.higher_is_better,
                )
            )
            break
    return made


def rows(report: StudyReport, batch: int | None) -> list[dict[str, Any]]:
    """Each experiment's numbers in shown units; null where there is none, which passes no limit."""
    baseline = baseline_of(report)
    made = []
    for e in report.experiments:
        values: dict[str, float | None] = {}
        for measurement in e.measurements:
            found = at_batch(e, measurement.metric, batch)
            if found is None:
                continue
            metric = definition(found.metric, found.unit)
            factor = formatting.scale(metric.unit, metric.group).factor
            value = found.value
            values[found.metric] = value * factor if value is not None and math.isfinite(value) else None
        made.append(
            {
                "name": e.experiment,
                "succeeded": e.status == "succeeded",
                "baseline": baseline is not None and e.experiment == baseline.experiment,
                "values": values,
            }
        )
    return made
