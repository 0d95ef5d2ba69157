"""Who runs, who waits and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from experiments.records import DeviceFacts
from webapp.accounts.models import Team
from webapp.core.clock import database_now
from webapp.runs import scheduling
from webapp.runs.models import Attempt, Experiment, Lease, Worker
from webapp.runs.selectors.devices import is_alive
from webapp.runs.services.attempts import ALIVE


@dataclass(frozen=True)
class DeviceView:
    """A device and the attempt that holds it, if any."""

    facts: DeviceFacts
    attempt: Attempt | None


@dataclass(frozen=True)
class WorkerView:
    """A worker and its devices."""

    worker: Worker
    alive: bool
    devices: tuple[DeviceView, ...]


@dataclass(frozen=True)
class RunningView:
    """An attempt that holds devices. ``mine`` is False for another team's, whose names are not shown."""

    attempt: Attempt
    experiment: Experiment
    mine: bool


@dataclass(frozen=True)
class WaitingView:
    """A waiting experiment, its place in line from 1, and why it waits."""

    experiment: Experiment
    position: int
    reason: str
    mine: bool


@dataclass(frozen=True)
class QueueSnapshot:
    """The whole queue at one moment."""

    at: datetime
    workers: tuple[WorkerView, ...]
    running: tuple[RunningView, ...]
    waiting: tuple[WaitingView, ...]


def queue_snapshot(team: Team | None = None) -> QueueSnapshot:
    """Workers, what runs, and who waits in the order of service with the reason; a constant number of queries.

    Args:
        team: whose experiments are ``mine``; None (the installation itself) makes all of them so.
    """
    now = database_now()
    alive = list(
        Attempt.objects.filter(status__in=ALIVE)
        .select_related("experiment", "experiment__study", "team")
        .defer("experiment__spec", "experiment__preflight", "experiment__study__spec")
        .order_by("pk")
    )
    by_id = {attempt.pk: attempt for attempt in alive}
    holders = {
        (host, resource): by_id.get(attempt_id)
        for host, resource, attempt_id in Lease.objects.values_list("host", "resource", "attempt_id")
    }
    workers = []
    for worker in Worker.objects.filter(stopped_at__isnull=True).order_by("name"):
        devices = []
        for data in worker.devices:
            facts = DeviceFacts.model_validate(data)
            held = [holders.get((worker.host, r)) for r in scheduling.Device.of(facts).resources]
            devices.append(DeviceView(facts, next((attempt for attempt in held if attempt), None)))
        workers.append(WorkerView(worker, is_alive(worker, now), tuple(devices)))
    present = scheduling.snapshot(now)
    reasons = scheduling.explain(present).reasons
    order = [job.id for job in present.waiting]
    # A study's spec names all its experiments: read with each of them it would be megabytes.
    light = Experiment.objects.select_related("study", "team").defer("spec", "preflight", "study__spec")
    rows = light.in_bulk(order)
    return QueueSnapshot(
        at=now,
        workers=tuple(workers),
        running=tuple(RunningView(a, a.experiment, team is None or a.team_id == team.pk) for a in alive),
        waiting=tuple(
            WaitingView(rows[pk], position, reasons.get(pk, "starts now"), team is None or rows[pk].team_id == team.pk)
            for position, pk in enumerate(order, start=1)
            if pk in rows
        ),
    )
