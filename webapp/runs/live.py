"""What a page that follows a run asks for every two seconds, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q

from webapp.core.errors import Invalid
from webapp.runs import history, selectors
from webapp.runs.models import TERMINAL, Event, Experiment, Status, Study

#: Lines of one experiment that are sent at once; a page that fell behind further skips the older ones.
MAX_LINES = 200


@dataclass(frozen=True)
class LiveExperiment:
    """An experiment and the lines that the page does not have yet."""

    experiment: Experiment
    lines: tuple[history.Line, ...]
    moved: bool = True

    @property
    def stages(self) -> list[tuple[str, str]]:
        """Stage -> ok, now or empty, in order."""
        names = list(history.STAGES)
        if self.experiment.status == Status.SUCCEEDED:
            return [(name, "ok") for name in names]
        if self.experiment.stage not in names:
            return [(name, "") for name in names]
        at = names.index(self.experiment.stage)
        now = "now" if self.experiment.status == Status.RUNNING else ""
        return [(name, "ok" if i < at else now if i == at else "") for i, name in enumerate(names)]


@dataclass(frozen=True)
class Live:
    """One answer: everything that changed, and what to ask for next."""

    study: Study
    experiments: tuple[LiveExperiment, ...]
    after: str
    ended: int
    changed: bool

    @property
    def total(self) -> int:
        """Experiments of the study."""
        return len(self.experiments)

    @property
    def over(self) -> bool:
        """True if nothing will change any more: the page stops asking."""
        return self.ended == self.total

    @property
    def fraction(self) -> float:
        """Share of the whole study that is done."""
        if not self.experiments:
            return 1.0
        done = sum(1.0 if e.experiment.status in TERMINAL else e.experiment.fraction for e in self.experiments)
        return done / self.total

    @property
    def summary(self) -> str:
        """The study's state in a few words."""
        counts = self.counts
        if self.over:
            return f"{counts.get(Status.SUCCEEDED, 0)} of {self.total} succeeded"
        if self.ended or counts.get(Status.RUNNING):
            return f"{self.ended} of {self.total} ended"
        return f"{self.total} waiting"

    @property
    def counts(self) -> dict[str, int]:
        """Experiments by status."""
        counts: dict[str, int] = {}
        for e in self.experiments:
            counts[e.experiment.status] = counts.get(e.experiment.status, 0) + 1
        return counts


def seen(text: str) -> dict[int, int]:
    """``12:40,13:7`` as experiment -> newest sequence number on the page.

    Raises:
        Invalid: anything else.
    """
    try:
        pairs = [part.split(":") for part in text.split(",") if part]
        return {int(experiment): int(seq) for experiment, seq in pairs}
    except ValueError:
        raise Invalid("'after' must look like 12:40,13:7") from None


def live(study: Study, after: dict[int, int] | None = None, ended: int = -1) -> Live:
    """The study as it is now, with the lines after ``after``; two queries, however many experiments it has.

    ``ended`` is how many ended experiments the page shows; ``changed`` says whether there are others by now.
    """
    rows = selectors.experiments(study)
    if after is None:  # a fresh page: what ended keeps its lines on its own page
        moved = [e for e in rows if e.status not in TERMINAL]
        lines = _lines([e for e in moved if e.status == Status.RUNNING], {})
    else:
        moved = [e for e in rows if e.pk in after and e.last_seq > after[e.pk]]
        lines = _lines(moved, after)
    now_ended = sum(e.status in TERMINAL for e in rows)
    return Live(
        study=study,
        experiments=tuple(LiveExperiment(e, tuple(lines.get(e.pk, ())), e in moved) for e in rows),
        after=",".join(f"{e.pk}:{e.last_seq}" for e in rows if e.status not in TERMINAL),
        ended=now_ended,
        changed=ended >= 0 and now_ended != ended,
    )


def _lines(experiments: list[Experiment], after: dict[int, int]) -> dict[int, list[history.Line]]:
    found: dict[int, list[history.Line]] = {}
    if not experiments:
        return found
    wanted = Q()
    for e in experiments:
        wanted |= Q(experiment=e.pk, seq__gt=max(after.get(e.pk, 0), e.last_seq - MAX_LINES))
    for event in Event.objects.filter(wanted).order_by("experiment_id", "seq"):
        if (line := history.line(event)) is not None:
            found.setdefault(event.experiment_id, []).append(line)
    return found
