"""The only place where a status changes, and where history is written."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from webapp.core.clock import database_now
from webapp.core.errors import StaleWrite
from webapp.runs.models import Attempt, AttemptStatus, Event, Experiment, Status

_EXPERIMENT: dict[str, frozenset[str]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.FAILED, Status.CANCELLED}),
    Status.RUNNING: frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.QUEUED}),
    Status.SUCCEEDED: frozenset({Status.QUEUED}),
    Status.FAILED: frozenset({Status.QUEUED}),
    Status.CANCELLED: frozenset({Status.QUEUED}),
}
_ATTEMPT: dict[str, frozenset[str]] = {
    AttemptStatus.LEASED: frozenset(
        {AttemptStatus.RUNNING, AttemptStatus.CANCELLED, AttemptStatus.FAILED, AttemptStatus.LOST}
    ),
    AttemptStatus.RUNNING: frozenset(
        {AttemptStatus.SUCCEEDED, AttemptStatus.FAILED, AttemptStatus.CANCELLED, AttemptStatus.LOST}
    ),
}


def transition(
    subject: Experiment | Attempt, *, to: str, actor: str, reason: str, now: datetime | None = None, **fields: Any
) -> None:
    """Change the status of an experiment or an attempt, with ``fields`` set in the same update, and record who and why.

    The update is conditional on the status that the caller saw (and on an attempt's number), so of two callers that
    race exactly one succeeds. ``subject`` is changed to match.

    Raises:
        StaleWrite: the status is another one by now, or never leads to ``to``.
    """
    allowed = _EXPERIMENT if isinstance(subject, Experiment) else _ATTEMPT
    before = subject.status
    if to not in allowed.get(before, frozenset()):
        raise StaleWrite(f"{subject!r} is {before}; that never becomes {to}")
    with transaction.atomic(savepoint=False):
        if isinstance(subject, Experiment):
            changed = Experiment.objects.filter(pk=subject.pk, status=before).update(status=to, **fields)
            experiment_id, number, kind = subject.pk, 0, "experiment"
        else:
            changed = Attempt.objects.filter(pk=subject.pk, number=subject.number, status=before).update(
                status=to, **fields
            )
            experiment_id, number, kind = subject.experiment_id, subject.number, "attempt"
        if changed != 1:
            raise StaleWrite(f"{subject!r} is not {before} any more")
        history_append(
            experiment_id=experiment_id,
            number=number,
            rows=[("status", {"subject": kind, "from": str(before), "to": str(to), "reason": reason})],
            actor=actor,
            now=now,
        )
    for name, value in {"status": to, **fields}.items():
        setattr(subject, name, value)


def history_append(
    *,
    experiment_id: int,
    number: int,
    rows: Iterable[tuple[str, dict[str, Any]]],
    actor: str,
    now: datetime | None = None,
) -> int:
    """Append ``(kind, data)`` rows to an experiment's history and return the newest sequence number.

    The counter on the experiment's row hands out the numbers, so they have no gaps and are visible in order.
    """
    new = list(rows)
    now = now or database_now()
    with transaction.atomic(savepoint=False):
        Experiment.objects.filter(pk=experiment_id).update(last_seq=F("last_seq") + len(new))
        last = Experiment.objects.values_list("last_seq", flat=True).get(pk=experiment_id)
        first = last - len(new) + 1
        Event.objects.bulk_create(
            Event(
                experiment_id=experiment_id,
                attempt_number=number,
                seq=first + offset,
                at=now,
                kind=kind,
                actor=actor,
                data=data,
            )
            for offset, (kind, data) in enumerate(new)
        )
    return int(last)
