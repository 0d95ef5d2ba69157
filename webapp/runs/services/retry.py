"""Runs an ended experiment again."""

from __future__ import annotations

from django.db import transaction

from webapp.accounts.models import Team
from webapp.core.clock import database_now
from webapp.core.errors import NotFound
from webapp.runs import scheduling
from webapp.runs.models import TERMINAL, AttemptStatus, Experiment, MeasurementRow, Status
from webapp.runs.services.transitions import transition


def experiment_retry(*, team: Team, experiment_id: int, actor: str) -> Experiment:
    """Queue an ended experiment again; one that waits or runs is left alone, so a double click runs it once.

    Old attempts keep their reports, logs and artifacts; the experiment's own numbers are those of its newest run.

    Raises:
        NotFound: there is no such experiment in this team.
    """
    with transaction.atomic():
        experiment = Experiment.objects.select_for_update().filter(team=team, pk=experiment_id).first()
        if experiment is None:
            raise NotFound("there is no such experiment")
        if experiment.status not in TERMINAL:
            return experiment
        MeasurementRow.objects.filter(experiment=experiment).delete()
        # A person looked at it and tries again: earlier losses no longer count.
        experiment.attempts.filter(status=AttemptStatus.LOST).update(counts_as_lost=False)
        now = database_now()
        transition(
            experiment,
            to=Status.QUEUED,
            actor=actor,
            reason="run again",
            now=now,
            failure=None,
            accepted=None,
            cancel_requested_at=None,
            queued_at=now,
            started_at=None,
            ended_at=None,
            stage="",
            message="",
            fraction=0.0,
            seconds_left=None,
        )
        transaction.on_commit(scheduling.wake)
    return experiment
