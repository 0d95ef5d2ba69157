"""Which number of a report a table or a chart takes: one metric at one batch size."""

from __future__ import annotations

from collections.abc import Sequence

from experiments import catalog
from experiments.protocols import MetricDefinition
from experiments.records import Measurement, Report, StudyReport

#: Metric -> the paired ratio that compares it with the baseline (rule 2: only in-attempt samples, with an interval).
PAIRED_RATIO = {
    "latency_p50_ms": "speedup_p50",
    "throughput_per_s": "speedup_throughput",
    "ttft_p50_ms": "speedup_ttft",
    "tpot_p50_ms": "speedup_tpot",
}

#: Metric -> the paired difference that compares it with the baseline.
PAIRED_DIFFERENCE = {
    "accuracy": "accuracy_difference",
    "f1_macro": "f1_macro_difference",
    "perplexity": "perplexity_difference",
    "bits_per_byte": "bits_per_byte_difference",
}


def definition(metric: str, unit: str = "") -> MetricDefinition:
    """What a metric means; a metric that this version does not know keeps its name and claims no direction."""
    known = catalog.definitions().get(metric)
    if known is not None:
        return known
    return MetricDefinition(metric, metric.replace("_", " "), unit, None, "Not defined by this version.")


def at_batch(report: Report, metric: str, batch: int | None) -> Measurement | None:
    """The first measurement of ``metric`` at ``batch``, or one that does not depend on the batch size."""
    for measurement in report.measurements:
        if measurement.metric == metric and measurement.at.get("batch_size", batch) == batch:
            return measurement
    return None


def batch_sizes(report: StudyReport) -> list[int]:
    """The batch sizes that were measured, in the order of the workload."""
    asked = (report.spec.get("workload") or {}).get("batch_sizes") or []
    seen = {
        int(m.at["batch_size"]) for e in report.experiments for m in e.measurements if "batch_size" in m.at
    }
    return [b for b in asked if b in seen] + sorted(seen - set(asked))


def metrics_of(reports: Sequence[Report]) -> list[MetricDefinition]:
    """The metrics that these reports have, in the catalogue's order; unknown ones last."""
    units = {m.metric: m.unit for r in reports for m in r.measurements}
    order = {name: index for index, name in enumerate(catalog.definitions())}
    return [definition(n, units[n]) for n in sorted(units, key=lambda n: (order.get(n, len(order)), n))]


def baseline_of(report: StudyReport) -> Report | None:
    """The report of the baseline, if there is one."""
    return next((e for e in report.experiments if e.experiment == report.baseline), None)
