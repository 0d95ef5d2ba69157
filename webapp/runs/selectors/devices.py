"""Which devices can be leased now."""

from __future__ import annotations

from datetime import datetime, timedelta

from experiments.records import DeviceFacts
from webapp.core.clock import database_now
from webapp.runs.models import Worker

#: A worker that was silent for so long counts as gone: nothing is leased to it.
WORKER_SILENT = timedelta(seconds=20)


def is_alive(worker: Worker, now: datetime) -> bool:
    """True if the worker has not said goodbye and was heard lately."""
    return worker.stopped_at is None and worker.heartbeat_at > now - WORKER_SILENT


def live_devices() -> list[DeviceFacts]:
    """The devices of all living workers."""
    now = database_now()
    return [
        DeviceFacts.model_validate(facts)
        for worker in Worker.objects.filter(stopped_at__isnull=True).order_by("name")
        if is_alive(worker, now)
        for facts in worker.devices
    ]
