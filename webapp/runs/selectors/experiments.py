"""Reads of experiments, their attempts and their history."""

from __future__ import annotations

from typing import Literal

from webapp.accounts.models import Team
from webapp.core.errors import NotFound
from webapp.runs.models import Attempt, AttemptStatus, Event, Experiment, Study


def experiments(study: Study) -> list[Experiment]:
    """A study's experiments in order, the baseline first, with their accepted attempts; one query."""
    return list(study.experiments.select_related("accepted").order_by("index"))


def experiment(team: Team, experiment_id: int) -> Experiment:
    """One experiment of the team, with its study.

    Raises:
        NotFound: there is none in this team.
    """
    found = (
        Experiment.objects.filter(team=team, pk=experiment_id)
        .select_related("study", "study__created_by", "accepted")
        .first()
    )
    if found is None:
        raise NotFound("there is no such experiment")
    return found


def attempts(experiment: Experiment) -> list[Attempt]:
    """All executions, newest first."""
    return list(experiment.attempts.order_by("-number"))


def events(experiment: Experiment, after: int = 0, limit: int = 500) -> list[Event]:
    """The history after sequence number ``after``, oldest first."""
    return list(experiment.events.filter(seq__gt=after).order_by("seq")[: max(1, min(limit, 1000))])


def status_history(experiment: Experiment) -> list[Event]:
    """Only what changed its state: who, when, why."""
    return list(experiment.events.filter(kind__in=("status", "cancel", "refused", "stage")).order_by("seq")[:1000])


def attempt_orders(attempt_id: int, number: int) -> Literal["go on", "cancel", "stale"]:
    """What a supervisor should do with the attempt that it runs."""
    mine = Attempt.objects.filter(pk=attempt_id, number=number, status=AttemptStatus.RUNNING)
    requests = list(mine.values_list("experiment__cancel_requested_at", flat=True))
    if not requests:
        return "stale"
    return "cancel" if requests[0] is not None else "go on"
