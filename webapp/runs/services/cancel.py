"""Cancels experiments, from any state and idempotently."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from webapp.accounts.models import Team
from webapp.core.clock import database_now
from webapp.core.errors import NotFound
from webapp.runs import scheduling
from webapp.runs.models import TERMINAL, Attempt, AttemptStatus, Experiment, Status, Study
from webapp.runs.services.attempts import ALIVE, _end
from webapp.runs.services.transitions import history_append, transition


def experiment_cancel(*, team: Team, experiment_id: int, actor: str) -> Experiment:
    """Cancel one experiment: at once if it waits, within ten seconds if it runs, not at all if it has ended.

    Raises:
        NotFound: there is no such experiment in this team.
    """
    with transaction.atomic():
        experiment = Experiment.objects.select_for_update().filter(team=team, pk=experiment_id).first()
        if experiment is None:
            raise NotFound("there is no such experiment")
        alive = Attempt.objects.filter(experiment=experiment, status__in=ALIVE).first()
        _cancel(experiment, alive, actor, database_now())
        transaction.on_commit(scheduling.wake)
    return experiment


def study_cancel(*, team: Team, study_id: int, actor: str) -> Study:
    """Cancel every experiment of a study that has not ended.

    Raises:
        NotFound: there is no such study in this team.
    """
    with transaction.atomic():
        study = Study.objects.filter(team=team, pk=study_id).first()
        if study is None:
            raise NotFound("there is no such study")
        open_ones = (
            study.experiments.exclude(status__in=TERMINAL).order_by("pk").defer("spec", "preflight").select_for_update()
        )
        experiments = list(open_ones)  # all rows are locked before their attempts are looked at
        alive = {a.experiment_id: a for a in Attempt.objects.filter(experiment__study=study, status__in=ALIVE)}
        now = database_now()
        for experiment in experiments:
            _cancel(experiment, alive.get(experiment.pk), actor, now)
        transaction.on_commit(scheduling.wake)
    return study


def _cancel(experiment: Experiment, attempt: Attempt | None, actor: str, now: datetime) -> None:
    if experiment.status in TERMINAL or experiment.cancel_requested_at is not None:
        return
    if attempt is None:
        transition(
            experiment,
            to=Status.CANCELLED,
            actor=actor,
            reason="cancelled while waiting",
            now=now,
            ended_at=now,
            cancel_requested_at=now,
        )
        return
    Experiment.objects.filter(pk=experiment.pk).update(cancel_requested_at=now)
    experiment.cancel_requested_at = now
    if attempt.status == AttemptStatus.LEASED:
        _end(attempt, experiment, AttemptStatus.CANCELLED, Status.CANCELLED, actor, "cancelled before it began", now)
    else:
        # Its supervisor sees the request within a second, stops the engine and ends the attempt.
        history_append(
            experiment_id=experiment.pk,
            number=attempt.number,
            rows=[("cancel", {"reason": "cancel requested"})],
            actor=actor,
            now=now,
        )
