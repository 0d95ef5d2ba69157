"""Workers come, live and go."""

from __future__ import annotations

import re
from typing import Any

from django.db import connection

from experiments.records import DeviceFacts
from webapp.core.clock import database_now
from webapp.core.errors import Conflict, Invalid
from webapp.runs import selectors
from webapp.runs.models import Worker

#: What a worker may be called; the name is part of its queue's name.
NAME = r"[A-Za-z0-9._-]{1,100}"


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
        Invalid: a name that can't be one.
        Conflict: a living worker elsewhere has this name, or works elsewhere on the same SQLite file.
    """
    if not re.fullmatch(NAME, name):
        raise Invalid(f"{name[:100]!r} can't be a worker's name; use letters, digits, '.', '_' and '-', at most 100")
    now = database_now()
    known = Worker.objects.filter(name=name).first()
    if known is not None and known.host != host and selectors.is_alive(known, now):
        raise Conflict(f"there is a living worker named {name!r} on {known.host}; choose another --name")
    if connection.vendor == "sqlite":
        others = Worker.objects.exclude(host=host).filter(stopped_at__isnull=True)
        if elsewhere := [other for other in others if selectors.is_alive(other, now)]:
            raise Conflict(
                f"SQLite serves one host, and {elsewhere[0].name!r} works on {elsewhere[0].host}; "
                "several hosts need PostgreSQL (DATABASE_URL)"
            )
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
