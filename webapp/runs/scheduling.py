"""Which attempt runs where: a pure decision, and one transaction that makes it true.

Whoever ticks holds the one :class:`SchedulerLock` row meanwhile. A tick reaps leases that ran out, leases free
devices to waiting experiments (priority, then age), and names the attempts whose message must be sent (again).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Max, Q

from experiments.records import DeviceFacts
from webapp.core.clock import database_now
from webapp.core.errors import StaleWrite
from webapp.runs import queue
from webapp.runs.models import Attempt, AttemptStatus, Experiment, Lease, SchedulerLock, Status, Worker
from webapp.runs.selectors.devices import WORKER_SILENT
from webapp.runs.services.attempts import ALIVE, LEASE, attempt_lost
from webapp.runs.services.transitions import history_append

log = structlog.get_logger(__name__)

#: A message that was not claimed for so long is sent again.
RESEND_AFTER = timedelta(seconds=6)

#: Waiting experiments that one tick looks at.
LOOK_AHEAD = 500


@dataclass(frozen=True)
class Device:
    """A device of a worker and what it holds of its host (cores, or itself)."""

    name: str
    kind: str
    resources: frozenset[str]

    @classmethod
    def of(cls, facts: DeviceFacts) -> Device:
        """A CPU device is its cores: two workers that cut a host differently never share one."""
        cores = frozenset(f"core:{core}" for core in facts.cores) if facts.kind == "cpu" else frozenset()
        return cls(name=facts.name, kind=facts.kind, resources=cores or frozenset({facts.name}))


@dataclass(frozen=True)
class Place:
    """A living worker that may be leased to."""

    worker: str
    host: str
    devices: tuple[Device, ...]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A waiting experiment and what it needs."""

    id: int
    priority: int
    queued_at: datetime
    kind: str
    count: int
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """All that a decision looks at. ``held`` are (host, resource) pairs."""

    places: tuple[Place, ...]
    held: frozenset[tuple[str, str]]
    waiting: tuple[Job, ...]


@dataclass(frozen=True)
class Assignment:
    """These devices of this worker go to this job."""

    job: int
    worker: str
    host: str
    devices: tuple[str, ...]
    resources: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """Assignments, and for each job that still waits the reason in one sentence."""

    assignments: tuple[Assignment, ...]
    reasons: Mapping[int, str]


def decide(snapshot: Snapshot) -> list[Assignment]:
    """Who gets which devices now. Pure."""
    return list(explain(snapshot).assignments)


def explain(snapshot: Snapshot) -> Decision:
    """Who gets which devices now, and why the others wait. Pure.

    Jobs are served by priority, then age. A job gets all its devices on one worker or none. One that must wait for
    several devices keeps the worker that will be free for it first: jobs behind it can't take those devices, so a big
    job never starves.
    """
    held = set(snapshot.held)
    reserved: dict[tuple[str, str], int] = {}  # (worker, kind) -> the job it is kept for
    assignments: list[Assignment] = []
    reasons: dict[int, str] = {}
    ordered = sorted(snapshot.waiting, key=lambda job: (-job.priority, job.queued_at, job.id))
    for position, job in enumerate(ordered):
        able = [place for place in snapshot.places if _able(place, job)]
        if not able:
            reasons[job.id] = _unable(snapshot.places, job)
            continue
        chosen: tuple[Place, list[Device]] | None = None
        for place in able:
            if (place.worker, job.kind) in reserved:
                continue
            free = _free(place, job.kind, held)
            if len(free) >= job.count and (chosen is None or len(free) < len(_free(chosen[0], job.kind, held))):
                chosen = (place, free[: job.count])  # the tightest fit leaves room for bigger jobs
        if chosen is None:
            target = max(able, key=lambda place: (len(_free(place, job.kind, held)), place.worker))
            if job.count > 1:
                reserved.setdefault((target.worker, job.kind), job.id)
            reasons[job.id] = _busy(job, able, reserved, position)
            continue
        place, devices = chosen
        resources = sorted(resource for device in devices for resource in device.resources)
        held.update((place.host, resource) for resource in resources)
        assignments.append(
            Assignment(job.id, place.worker, place.host, tuple(d.name for d in devices), tuple(resources))
        )
    return Decision(tuple(assignments), reasons)


def _able(place: Place, job: Job) -> bool:
    mine = sum(device.kind == job.kind for device in place.devices)
    return mine >= job.count and all(place.labels.get(k) == v for k, v in job.labels.items())


def _free(place: Place, kind: str, held: set[tuple[str, str]]) -> list[Device]:
    return [
        device
        for device in place.devices
        if device.kind == kind and not any((place.host, resource) in held for resource in device.resources)
    ]


def _unable(places: tuple[Place, ...], job: Job) -> str:
    if not places:
        return "no worker is connected; start one with `python manage.py worker`"
    labelled = [p for p in places if all(p.labels.get(k) == v for k, v in job.labels.items())]
    if not labelled:
        wanted = ", ".join(f"{k}={v}" for k, v in sorted(job.labels.items()))
        return f"no connected worker has the labels {wanted}"
    most = max(sum(device.kind == job.kind for device in place.devices) for place in labelled)
    if most == 0:
        return f"no connected worker has a {job.kind} device"
    return f"needs {job.count} {job.kind} devices on one worker; the largest has {most}"


def _busy(job: Job, able: list[Place], reserved: Mapping[tuple[str, str], int], position: int) -> str:
    keepers = {reserved.get((place.worker, job.kind)) for place in able} - {None, job.id}
    ahead = f"; {position} ahead of it" if position else "; next in line"
    if keepers:
        return f"free {job.kind} devices are kept for a larger experiment that came first{ahead}"
    devices = "device is" if job.count == 1 else "devices are"
    return f"waits until {job.count} {job.kind} {devices} free{ahead}"


# ------------------------------------------------------------------------------------------------ reading and writing


def snapshot(now: datetime | None = None) -> Snapshot:
    """The present state, in three queries."""
    now = now or database_now()
    workers = Worker.objects.filter(stopped_at__isnull=True, draining=False, heartbeat_at__gt=now - WORKER_SILENT)
    places = tuple(
        Place(
            worker=worker.name,
            host=worker.host,
            devices=tuple(Device.of(DeviceFacts.model_validate(facts)) for facts in worker.devices),
            labels=worker.labels,
        )
        for worker in workers.order_by("name")
    )
    held = frozenset(Lease.objects.values_list("host", "resource"))
    waiting = (
        Experiment.objects.filter(status=Status.QUEUED)
        .exclude(attempts__status__in=ALIVE)
        .order_by("-priority", "queued_at", "id")
        .values_list("id", "priority", "queued_at", "device_kind", "device_count", "labels")[:LOOK_AHEAD]
    )
    return Snapshot(places, held, tuple(Job(*row) for row in waiting))


def tick(*, actor: str) -> bool:
    """Reap, assign, send; False if another process was at it. Safe to call from anywhere at any time."""
    try:
        with transaction.atomic():
            if not _lock():
                return False
            now = database_now()
            reap(now, actor=actor)
            assign(now, actor=actor)
            messages = _unsent(now)
            SchedulerLock.objects.filter(pk="scheduler").update(ticked_at=now)
    except StaleWrite as lost:  # a worker ended its attempt between our look and our write; the next tick sees it
        log.info("tick_raced", reason=str(lost))
        return False
    for worker_name, attempt_id, number in messages:
        if not queue.send_attempt(worker_name=worker_name, attempt_id=attempt_id, number=number):
            break  # no broker: a later tick sends all of them again
    return True


def wake() -> None:
    """Tick now because something changed; a failure only means that the next worker's tick does it."""
    try:
        tick(actor="scheduler")
    except DatabaseError as error:
        log.warning("wake_failed", error=str(error))


def assign(now: datetime, *, actor: str) -> list[Assignment]:
    """Make the decision true: an attempt and its leases for each assignment. The caller holds the lock."""
    made = []
    for assignment in decide(snapshot(now)):
        try:
            with transaction.atomic():
                if _lease(assignment, now, actor):
                    made.append(assignment)
        except IntegrityError as error:  # the constraint is the last word on who holds a device
            log.warning("lease_refused", experiment=assignment.job, error=str(error))
    return made


def reap(now: datetime, *, actor: str) -> int:
    """Give up every attempt whose lease ran out; returns how many."""
    expired = list(
        Attempt.objects.filter(status__in=ALIVE, lease_expires_at__lt=now).values_list(
            "id", "number", "worker_name", "status"
        )
    )
    for attempt_id, number, worker_name, status in expired:
        silent = (now - LEASE).strftime("%H:%M:%S")
        reason = (
            f"worker {worker_name} has been silent since {silent} UTC"
            if status == AttemptStatus.RUNNING
            else f"worker {worker_name} never began it"
        )
        attempt_lost(
            attempt_id=attempt_id, number=number, actor=actor, reason=reason, fault=status == AttemptStatus.RUNNING
        )
    return len(expired)


def _lock() -> bool:
    """Hold the scheduler's row until the transaction ends; False if another process holds it."""
    SchedulerLock.objects.get_or_create(name="scheduler")
    rows = SchedulerLock.objects.filter(name="scheduler")
    if connection.features.has_select_for_update_skip_locked:
        rows = rows.select_for_update(skip_locked=True)
    return bool(list(rows))  # on SQLite the immediate transaction itself is the lock


def _lease(assignment: Assignment, now: datetime, actor: str) -> bool:
    experiment = Experiment.objects.select_for_update().get(pk=assignment.job)
    if experiment.status != Status.QUEUED or experiment.attempts.filter(status__in=ALIVE).exists():
        return False
    newest = experiment.attempts.aggregate(newest=Max("number"))["newest"] or 0
    attempt = Attempt.objects.create(
        team_id=experiment.team_id,
        experiment=experiment,
        number=newest + 1,
        worker=Worker.objects.filter(name=assignment.worker).first(),
        worker_name=assignment.worker,
        devices=list(assignment.devices),
        lease_expires_at=now + LEASE + LEASE,  # until claimed: time to be sent twice
    )
    Lease.objects.bulk_create(
        Lease(host=assignment.host, resource=resource, attempt=attempt) for resource in assignment.resources
    )
    history_append(
        experiment_id=experiment.pk,
        number=attempt.number,
        rows=[
            (
                "status",
                {
                    "subject": "attempt",
                    "from": None,
                    "to": str(AttemptStatus.LEASED),
                    "reason": f"{', '.join(assignment.devices)} of {assignment.worker}",
                },
            )
        ],
        actor=actor,
        now=now,
    )
    return True


def _unsent(now: datetime) -> list[tuple[str, int, int]]:
    """Attempts whose message was never sent or not claimed in time, marked as sent now."""
    due = Attempt.objects.filter(status=AttemptStatus.LEASED).filter(
        Q(sent_at__isnull=True) | Q(sent_at__lt=now - RESEND_AFTER)
    )
    rows = list(due.values_list("worker_name", "id", "number"))
    Attempt.objects.filter(pk__in=[attempt_id for _, attempt_id, _ in rows]).update(sent_at=now)
    return rows
