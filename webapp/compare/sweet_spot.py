"""The row to mark in brass: the cheapest experiment that keeps the baseline's quality."""

from __future__ import annotations

from experiments.records import Report, StudyReport
from webapp.compare.points import PAIRED_DIFFERENCE, PAIRED_RATIO, at_batch, definition

#: A drop of the task score that still counts as kept (one point), where an interval can't decide.
TOLERATED_DROP = 0.01
#: The same for perplexity and other scores without an upper end: a share of the baseline's value.
TOLERATED_SHARE = 0.02

COSTS = ("cost_per_1k_requests_usd", "cost_per_1m_tokens_usd")


def sweet_spot(report: StudyReport, batch: int | None) -> str | None:
    """Name of the cheapest experiment that is proven faster and keeps quality, or None if there is none.

    Proven faster: the interval of its paired ratio lies above 1. Keeps quality: see :func:`keeps_quality`.
    """
    candidates = [
        e
        for e in report.experiments
        if e.status == "succeeded"
        and e.experiment != report.baseline
        and _proven_faster(e, batch)
        and keeps_quality(e, report)
    ]
    return min(candidates, key=lambda e: _price(e, batch)).experiment if candidates else None


def _proven_faster(report: Report, batch: int | None) -> bool:
    speed = at_batch(report, PAIRED_RATIO["latency_p50_ms"], batch)
    return speed is not None and speed.interval is not None and speed.interval.low > 1


def keeps_quality(report: Report, study: StudyReport) -> bool:
    """True if the task score is at most one point (2 % for perplexity) worse than the baseline's."""
    baseline = next((e for e in study.experiments if e.experiment == study.baseline), None)
    for metric in PAIRED_DIFFERENCE:
        mine = report.find(metric)
        theirs = baseline.find(metric) if baseline else None
        if mine is None or theirs is None:
            continue
        if mine.value is None or theirs.value is None:
            return False
        higher = definition(metric).higher_is_better is not False
        drop = theirs.value - mine.value if higher else mine.value - theirs.value
        allowed = TOLERATED_DROP if higher else TOLERATED_SHARE * abs(theirs.value)
        if drop > allowed + 1e-12:
            return False
    return True


def _price(report: Report, batch: int | None) -> tuple[float, float]:
    """Cost, then latency; an experiment without a cost comes after those that have one."""
    costs = [m.value for name in COSTS if (m := at_batch(report, name, batch)) and m.value is not None]
    latency = at_batch(report, "latency_p50_ms", batch)
    return (costs[0] if costs else float("inf"), latency.value if latency and latency.value else float("inf"))
