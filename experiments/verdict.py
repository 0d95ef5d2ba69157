"""One sentence on what a study's table says, that a person can repeat in a meeting. Pure and torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.hardware.cpu import explain_slow
from experiments.numbers import ratio_text, significant
from experiments.records import Measurement, Report, StudyReport

#: Task scores, the first one that an experiment has counts; True where higher is better.
SCORES: dict[str, bool] = {
    "accuracy": True,
    "f1_macro": True,
    "spearman": True,
    "perplexity": False,
    "bits_per_byte": False,
}
SPEED = "speedup_p50"

#: Score -> its paired comparison with the baseline, and the value that means no difference.
COMPARED: dict[str, tuple[str, float]] = {"accuracy": ("accuracy_delta", 0.0), "perplexity": ("perplexity_ratio", 1.0)}

#: A baseline against itself whose interval spans more than this factor was measured on a busy machine.
NOISY = 1.5

#: A drop of the score that counts as kept even where it can be told apart: one point, or 2 % of a perplexity.
POINT = 0.01
SHARE = 0.02


@dataclass(frozen=True)
class Quality:
    """A candidate's task score beside its baseline's.

    ``drop`` is positive where the candidate is worse, in the score's unit. ``kept``: the drop can't be told from
    none, or is less than a point (2 % for scores without an upper end).
    """

    metric: str
    value: float
    baseline: float
    drop: float
    distinguishable: bool
    kept: bool


def at_batch(report: Report, metric: str, batch: int | None) -> Measurement | None:
    """The first measurement of ``metric`` at ``batch``, or one that does not depend on the batch size."""
    for found in report.measurements:
        if found.metric == metric and (batch is None or found.at.get("batch_size", batch) == batch):
            return found
    return None


def first_batch(study: StudyReport) -> int | None:
    """The batch size that tables show unless told: the first of the workload."""
    sizes = (study.spec.get("workload") or {}).get("batch_sizes") or []
    return int(sizes[0]) if sizes else None


def quality(report: Report, study: StudyReport) -> Quality | None:
    """How the candidate's score compares with the baseline's; None if there is no score to compare."""
    baseline = _baseline(study)
    if baseline is None:
        return None
    for metric, higher in SCORES.items():
        mine, theirs = report.find(metric), baseline.find(metric)
        if mine is None or theirs is None or mine.value is None or theirs.value is None:
            continue
        drop = theirs.value - mine.value if higher else mine.value - theirs.value
        name, same = COMPARED.get(metric, ("", 0.0))
        compared = report.find(name)
        apart = drop != 0
        if compared is not None and compared.interval is not None:
            apart = not compared.interval.contains(same)
        allowed = POINT if higher else SHARE * abs(theirs.value)
        return Quality(metric, mine.value, theirs.value, drop, apart, kept=drop <= 0 or drop < allowed or not apart)
    return None


def sweet_spot(study: StudyReport, batch: int | None = None) -> Report | None:
    """The fastest experiment that is proven faster than the baseline and keeps its quality, or None.

    Proven: the interval of its paired ratio lies above 1. Kept: see :class:`Quality`; an experiment whose score is
    undefined does not count as kept.
    """
    batch = batch if batch is not None else first_batch(study)
    scored = any(_has_score(report) for report in study.experiments)
    best: tuple[float, Report] | None = None
    for report in _candidates(study):
        speed = at_batch(report, SPEED, batch)
        if speed is None or speed.value is None or speed.interval is None or speed.interval.low <= 1:
            continue
        compared = quality(report, study)
        if (compared is None and scored) or (compared is not None and not compared.kept):
            continue
        if best is None or speed.value > best[0]:
            best = (speed.value, report)
    return best[1] if best else None


def verdict(report: StudyReport) -> str:
    """What the table says, in one line: the sweet spot or why there is none, and why formats are slower than hoped."""
    baseline = _baseline(report)
    if baseline is None or baseline.status != "succeeded":
        why = baseline.failure.message if baseline is not None and baseline.failure else "it has no result"
        return f"No comparison: the baseline {report.baseline} did not succeed ({_plain(why)})."
    batch = first_batch(report)
    candidates = _candidates(report)
    if not candidates:
        own = at_batch(baseline, "latency_p50_ms", batch)
        tail = f" runs at {significant(own.value)} ms (p50)" if own is not None and own.value is not None else " ran"
        return f"{report.baseline}{tail}; there is nothing to compare it with yet.{_failed(report)}"
    best = sweet_spot(report, batch)
    first = _about(best, report, batch) if best else _none_is_best(report, batch)
    return f"{first}{_slower(report, batch)}{_noise(baseline, batch)}{_failed(report)}"


def _about(best: Report, study: StudyReport, batch: int | None) -> str:
    speed = at_batch(best, SPEED, batch)
    assert speed is not None and speed.value is not None
    words = f"{best.experiment} is {ratio_text(speed)} as fast as {study.baseline}"
    smaller = _size_ratio(best, study)
    if smaller is not None and abs(smaller - 1) > 0.02:
        words += f", {significant(smaller * 100)} % of its size"
    compared = quality(best, study)
    if compared is not None:
        words += f", and {_quality_words(compared)}"
    return words + "."


def _quality_words(q: Quality) -> str:
    name = q.metric.replace("_", " ")
    values = f"{_score(q.value)} against {_score(q.baseline)}"
    if _score(q.value) == _score(q.baseline):
        return f"its {name} is the same ({_score(q.value)})"
    if not q.distinguishable:
        return f"its {name} can't be told apart ({values})"
    if q.drop < 0:
        return f"its {name} is no worse ({values})"
    verb = "rises" if q.value > q.baseline else "drops"  # perplexity is worse when it rises
    return f"its {name} {verb} by only {_drop(q)} ({values})"


def _none_is_best(study: StudyReport, batch: int | None) -> str:
    faster = [
        (speed.value, report, speed)
        for report in _candidates(study)
        if (speed := at_batch(report, SPEED, batch)) is not None
        and speed.value is not None
        and speed.interval is not None
        and speed.interval.low > 1
    ]
    if not faster:
        return f"Nothing is faster than {study.baseline} beyond the noise."
    _, report, speed = max(faster, key=lambda item: item[0])
    compared = quality(report, study)
    if compared is None:
        why = "has no score that could be compared"
    else:
        name = compared.metric.replace("_", " ")
        why = f"costs {_drop(compared)} of {name} ({_score(compared.value)} against {_score(compared.baseline)})"
    return f"{report.experiment} is fastest at {ratio_text(speed)} {study.baseline}, but it {why}; no sweet spot."


def _slower(study: StudyReport, batch: int | None) -> str:
    """Formats that are proven slower, grouped by the reason where the hardware gives one."""
    reasons: dict[str, list[str]] = {}
    for report in _candidates(study):
        speed = at_batch(report, SPEED, batch)
        if speed is None or speed.value is None or speed.interval is None or speed.interval.high >= 1:
            continue
        why = _why_slow(report)
        reasons.setdefault(why or "", []).append(f"{report.experiment} ({significant(speed.value)}x)")
    parts = []
    for why, names in sorted(reasons.items(), reverse=True):
        is_or_are = "is" if len(names) == 1 else "are"
        parts.append(f" {', '.join(names)} {is_or_are} slower{': ' + why if why else ''}.")
    return "".join(parts)


def _why_slow(report: Report) -> str | None:
    environment = report.environment
    if environment is None or report.artifact is None or any(d.kind != "cpu" for d in environment.devices):
        return None
    return explain_slow(report.artifact.dtype, environment.isa)


def _noise(baseline: Report, batch: int | None) -> str:
    """A warning where the baseline against itself says that the machine was too busy for fine ratios."""
    own = at_batch(baseline, SPEED, batch)
    if own is None or own.interval is None or own.interval.high <= NOISY * own.interval.low:
        return ""
    span = f"{significant(own.interval.low)}x to {significant(own.interval.high)}x"
    return f" Noisy: {baseline.experiment} against itself spans {span}; repeat it on a quiet machine."


def _failed(study: StudyReport) -> str:
    names = [r.experiment for r in study.experiments if r.status != "succeeded"]
    return f" No result: {', '.join(names)}." if names else ""


def _baseline(study: StudyReport) -> Report | None:
    return next((r for r in study.experiments if r.experiment == study.baseline), None)


def _candidates(study: StudyReport) -> list[Report]:
    return [r for r in study.experiments if r.status == "succeeded" and r.experiment != study.baseline]


def _has_score(report: Report) -> bool:
    return any(report.find(metric) is not None for metric in SCORES)


def _size_ratio(report: Report, study: StudyReport) -> float | None:
    baseline = _baseline(study)
    if baseline is None or baseline.artifact is None or report.artifact is None or not baseline.artifact.bytes:
        return None
    return report.artifact.bytes / baseline.artifact.bytes


def _score(value: float) -> str:
    return f"{value:.3f}" if abs(value) <= 1 else significant(value)


def _drop(q: Quality) -> str:
    if SCORES[q.metric]:
        return f"{significant(q.drop * 100)} points"
    return f"{significant(q.drop / q.baseline * 100)} %"


def _plain(text: str) -> str:
    return text.rstrip(". ")
