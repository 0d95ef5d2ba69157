"""Follows studies in a terminal: their stages while they run, their tables when they have ended."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.console import Progress
from experiments.table import render_text
from webapp.runs import selectors
from webapp.runs.models import TERMINAL, Experiment, Status, Study


class Follower:
    """Tells a :class:`Progress` what is new, each time it is asked to look."""

    def __init__(self, studies: Sequence[Study], progress: Progress) -> None:
        self._studies = list(studies)
        self._progress = progress
        self._seen: dict[int, int] = {}
        self._ended: set[int] = set()

    def look(self) -> bool:
        """Report what happened since the last look; True once everything has ended."""
        for study in self._studies:
            for experiment in study.experiments.order_by("index"):
                if experiment.pk not in self._ended and experiment.last_seq > self._seen.get(experiment.pk, 0):
                    self._tell(study, experiment)
        return self._ended >= {e.pk for study in self._studies for e in study.experiments.only("pk")}

    def _tell(self, study: Study, experiment: Experiment) -> None:
        name = f"{study.name}: {experiment.name}"
        message = ""
        for event in selectors.events(experiment, after=self._seen.get(experiment.pk, 0)):
            if event.kind in ("progress", "stage"):
                message = event.data.get("message") or message
        self._seen[experiment.pk] = experiment.last_seq
        if experiment.status in TERMINAL:
            self._ended.add(experiment.pk)
            reason = (experiment.failure or {}).get("message", "")
            self._progress.ended(name, experiment.status, reason)
        elif experiment.status == Status.RUNNING:
            self._progress.at(
                name,
                stage=experiment.stage or "starting",
                message=message,
                fraction=experiment.fraction,
                seconds_left=experiment.seconds_left,
            )


def tables(studies: Sequence[Study]) -> str:
    """The final table and verdict of each study."""
    parts = []
    for study in studies:
        report = selectors.study_report(study.team, study.pk)
        parts.append(f"{render_text(report)}\n\n=> {report.verdict}")
    return "\n\n\n".join(parts)


def all_succeeded(studies: Sequence[Study]) -> bool:
    """True if every experiment of the studies succeeded."""
    return not Experiment.objects.filter(study__in=studies).exclude(status=Status.SUCCEEDED).exists()
