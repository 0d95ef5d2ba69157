"""Which metrics a comparison has, what they mean, and what each is compared by."""

from __future__ import annotations

from collections.abc import Sequence

from experiments import catalog
from experiments.protocols import MetricDefinition
from experiments.records import Report, StudyReport
from experiments.verdict import SPEED

#: Metric -> the metric that compares it with the baseline, with an interval (rule 2: in-attempt, same examples).
COMPARED_BY = {
    "latency_p50_ms": SPEED,
    "tpot_ms": "speedup_tpot",
    "artifact_bytes": "size_ratio",
    "accuracy": "accuracy_delta",
    "perplexity": "perplexity_ratio",
}

#: Speed-ups have a column and a forest plot of their own; the other comparisons stand below what they compare.
SPEEDUPS = (SPEED, "speedup_tpot")


def definition(metric: str, unit: str = "") -> MetricDefinition:
    """What a metric means; a metric that this version does not know keeps its name and claims no direction."""
    known = catalog.definitions().get(metric)
    if known is not None:
        return known
    return MetricDefinition(metric, metric.replace("_", " "), unit, None, "Not defined by this version.")


def batch_sizes(report: StudyReport) -> list[int]:
    """The batch sizes that were measured, in the order of the workload."""
    asked = (report.spec.get("workload") or {}).get("batch_sizes") or []
    seen = {int(m.at["batch_size"]) for e in report.experiments for m in e.measurements if "batch_size" in m.at}
    return [b for b in asked if b in seen] + sorted(seen - set(asked))


def metrics_of(reports: Sequence[Report]) -> list[MetricDefinition]:
    """The metrics that these reports have, in the catalogue's order; unknown ones last."""
    units = {m.metric: m.unit for r in reports for m in r.measurements}
    order = {name: index for index, name in enumerate(catalog.definitions())}
    return [definition(n, units[n]) for n in sorted(units, key=lambda n: (order.get(n, len(order)), n))]


def baseline_of(report: StudyReport) -> Report | None:
    """The report of the baseline, if there is one."""
    return next((e for e in report.experiments if e.experiment == report.baseline), None)
