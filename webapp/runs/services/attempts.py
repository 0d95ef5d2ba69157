"""The life of one attempt: claim, renew, events, end. Each call names the attempt's number; an old one is refused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from django.db import transaction

from experiments.records import Event as EngineEvent
from experiments.records import Failure, FailureKind
from webapp.core.clock import database_now
from webapp.core.errors import StaleWrite
from webapp.runs.models import Attempt, AttemptStatus, Experiment, Lease, Status
from webapp.runs.services.transitions import history_append, transition

#: How long a silent attempt keeps its devices, and how often a living one says so.
LEASE = timedelta(seconds=20)
RENEW_EVERY_S = 5.0

#: An experiment whose workers were lost this often fails instead of being queued again.
MAX_LOST = 3

Orders = Literal["go on", "cancel", "stale"]


def attempt_claim(*, attempt_id: int, number: int, worker_name: str, log: str = "") -> Attempt | None:
    """Take a leased attempt for this process, exactly once; None if it is not to be run (claimed, ended, old)."""
    with transaction.atomic():
        found = _lock(attempt_id)
        if found is None:
            return None
        attempt, experiment = found
        if attempt.number != number or attempt.status != AttemptStatus.LEASED or attempt.worker_name != worker_name:
            return None
        now = database_now()
        if experiment.cancel_requested_at is not None:
            _end(attempt, experiment, AttemptStatus.CANCELLED, Status.CANCELLED, worker_name, "cancelled", now)
            return None
        transition(
            attempt,
            to=AttemptStatus.RUNNING,
            actor=worker_name,
            reason="claimed",
            now=now,
            claimed_at=now,
            lease_expires_at=now + LEASE,
            log=log,
        )
        transition(
            experiment,
            to=Status.RUNNING,
            actor=worker_name,
            reason=f"attempt {number} began",
            now=now,
            started_at=now,
            stage="",
            message="",
            fraction=0.0,
            seconds_left=None,
        )
        return attempt


def attempt_renew(*, attempt_id: int, number: int, memory_bytes: int | None = None) -> Orders:
    """Prolong the lease of a running attempt; says what to do: go on, cancel, or stop because it is no longer ours."""
    now = database_now()
    changed = Attempt.objects.filter(pk=attempt_id, number=number, status=AttemptStatus.RUNNING).update(
        lease_expires_at=now + LEASE, memory_bytes=memory_bytes
    )
    if changed != 1:
        return "stale"
    cancelled = Experiment.objects.filter(attempts=attempt_id, cancel_requested_at__isnull=False).exists()
    return "cancel" if cancelled else "go on"


def events_append(*, attempt_id: int, number: int, events: Sequence[EngineEvent]) -> int:
    """Store what the engine said and move the experiment's stage and percent; returns the newest sequence number.

    Raises:
        StaleWrite: the attempt is not running under this number.
    """
    with transaction.atomic():
        attempt, experiment = _running(attempt_id, number)
        rows: list[tuple[str, dict[str, Any]]] = []
        progress: dict[str, Any] = {}
        for event in events:
            data = event.model_dump(mode="json", exclude_none=True, exclude={"v", "seq", "kind", "report_path"})
            rows.append((event.kind, data))
            if event.stage is not None and event.state == "started":
                progress |= {"stage": event.stage[:60], "message": ""}
            if event.fraction is not None:
                progress["fraction"] = event.fraction
                progress["seconds_left"] = event.seconds_left
            if event.kind == "progress" and event.message:
                progress["message"] = " ".join(event.message.split())[:300]
        if progress:
            Experiment.objects.filter(pk=experiment.pk).update(**progress)
        return history_append(experiment_id=experiment.pk, number=number, rows=rows, actor=attempt.worker_name)


def attempt_end(
    *,
    attempt_id: int,
    number: int,
    status: Literal["failed", "cancelled"],
    failure: Failure | None = None,
    reason: str,
) -> None:
    """End a running attempt that has no report, and its experiment with it.

    Raises:
        StaleWrite: the attempt is not running under this number.
    """
    with transaction.atomic():
        attempt, experiment = _running(attempt_id, number)
        _end(attempt, experiment, status, status, attempt.worker_name, reason, database_now(), failure)


def attempt_lost(*, attempt_id: int, number: int, actor: str, reason: str, fault: bool = True) -> None:
    """Give up an attempt and queue its experiment again under a new number.

    ``fault`` is False where a stopping worker hands the attempt back. After :data:`MAX_LOST` faults the experiment
    fails as ``worker_lost`` instead, so that nothing loops for ever.

    Raises:
        StaleWrite: the attempt has ended or has another number.
    """
    with transaction.atomic():
        found = _lock(attempt_id)
        if found is None or found[0].number != number or found[0].status not in ALIVE:
            raise StaleWrite(f"attempt {attempt_id} is not alive under number {number}")
        attempt, experiment = found
        now = database_now()
        lost_before = experiment.attempts.filter(status=AttemptStatus.LOST, counts_as_lost=True).count()
        if experiment.cancel_requested_at is not None:
            _end(attempt, experiment, AttemptStatus.CANCELLED, Status.CANCELLED, actor, "cancelled", now)
        elif fault and lost_before + 1 >= MAX_LOST:
            failure = Failure(
                kind=FailureKind.WORKER_LOST,
                message=f"the worker was lost {lost_before + 1} times while this experiment ran; last: {reason}",
                fix="Look at the worker's log and memory; run the experiment again when the cause is gone.",
            )
            attempt.counts_as_lost = True
            _end(attempt, experiment, AttemptStatus.LOST, Status.FAILED, actor, reason, now, failure)
        else:
            release(attempt)
            transition(
                attempt, to=AttemptStatus.LOST, actor=actor, reason=reason, now=now, ended_at=now, counts_as_lost=fault
            )
            if experiment.status == Status.RUNNING:
                transition(
                    experiment,
                    to=Status.QUEUED,
                    actor=actor,
                    reason=f"queued again: {reason}",
                    now=now,
                    stage="",
                    message="",
                    fraction=0.0,
                    seconds_left=None,
                    started_at=None,
                )


ALIVE = (AttemptStatus.LEASED, AttemptStatus.RUNNING)


def release(attempt: Attempt) -> None:
    """Give the attempt's devices back."""
    Lease.objects.filter(attempt=attempt).delete()


def _lock(attempt_id: int) -> tuple[Attempt, Experiment] | None:
    """The attempt and its experiment, the experiment's row locked; every writer takes that lock first."""
    experiment = Experiment.objects.select_for_update().filter(attempts=attempt_id).first()
    if experiment is None:
        return None
    return Attempt.objects.get(pk=attempt_id), experiment


def _running(attempt_id: int, number: int) -> tuple[Attempt, Experiment]:
    found = _lock(attempt_id)
    if found is None or found[0].number != number or found[0].status != AttemptStatus.RUNNING:
        raise StaleWrite(f"attempt {attempt_id} is not running under number {number}")
    return found


def _end(
    attempt: Attempt,
    experiment: Experiment,
    attempt_status: str,
    status: str,
    actor: str,
    reason: str,
    now: datetime,
    failure: Failure | None = None,
) -> None:
    """Both ends at once, devices given back; the caller holds the experiment's lock."""
    data = failure.model_dump(mode="json") if failure else None
    release(attempt)
    transition(
        attempt,
        to=attempt_status,
        actor=actor,
        reason=reason,
        now=now,
        ended_at=now,
        failure=data,
        counts_as_lost=attempt.counts_as_lost,
    )
    transition(
        experiment,
        to=status,
        actor=actor,
        reason=reason,
        now=now,
        ended_at=now,
        failure=data,
        seconds_left=None,
    )
