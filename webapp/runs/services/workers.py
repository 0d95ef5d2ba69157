"""Workers come, live and go."""

from __future__ import annotations

from typing import Any

from experiments.records import DeviceFacts
from webapp.core.clock import database_now
from webapp.core.errors import Conflict
from webapp.runs import selectors
from webapp.runs.models import Worker


def worker_register(
    *,
    name: str,
    host: str,
    pid: int,
    devices: list[DeviceFacts],
    facts: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
) -> Worker:
    """Announce a worker and its devices.

    Raises:
        Conflict: a living worker elsewhere has this name.
    """
    now = database_now()
    known = Worker.objects.filter(name=name).first()
    if known is not None and known.host != host and selectors.is_alive(known, now):
        raise Conflict(f"there is a living worker named {name!r} on {known.host}; choose another --name")
    worker, _ = Worker.objects.update_or_create(
        name=name,
        defaults={
            "host": host,
            "pid": pid,
            "devices": [device.model_dump(mode="json") for device in devices],
            "facts": facts or {},
            "labels": labels or {},
            "draining": False,
            "started_at": now,
            "heartbeat_at": now,
            "stopped_at": None,
        },
    )
    return worker


def worker_heartbeat(*, name: str) -> None:
    """Say that the worker lives."""
    Worker.objects.filter(name=name, stopped_at__isnull=True).update(heartbeat_at=database_now())


def worker_drain(*, name: str, draining: bool = True) -> None:
    """Lease nothing new to this worker (or lease again); what runs there goes on."""
    Worker.objects.filter(name=name).update(draining=draining)


def worker_stop(*, name: str) -> None:
    """Say goodbye: its devices are gone."""
    Worker.objects.filter(name=name).update(stopped_at=database_now())
