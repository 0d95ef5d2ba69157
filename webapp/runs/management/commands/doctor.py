"""Says what works and what doesn't, and what to type."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.management.base import BaseCommand
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from webapp.core.clock import database_now
from webapp.core.views import database_answers
from webapp.runs import queue
from webapp.runs.models import Worker
from webapp.runs.selectors import is_alive

#: Less room than this is said (bytes): an export of a small language model needs some.
LITTLE_ROOM = 5 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    ok: bool
    what: str
    hint: str = ""


class Command(BaseCommand):
    """``manage.py doctor``: exit 1 if something must be mended."""

    help = "Look at the database, the broker, the workers and the disk; say what to do about what is wrong."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Print every finding."""
        broken = False
        for finding in findings():
            broken |= not finding.ok
            self.stdout.write(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}")
            if finding.hint:
                self.stdout.write(f"      {finding.hint}")
        if broken:
            sys.exit(1)


def findings() -> Iterator[Finding]:
    """All that can be found out without changing anything."""
    for message in checks.run_checks():
        if not message.is_silenced():
            yield Finding(message.level < checks.ERROR, message.msg, message.hint or "")
    yield Finding(True, f"Python {sys.version.split()[0]}, state in {settings.STEELYARD_HOME}")
    if not database_answers():
        yield Finding(False, "the database does not answer", "Check DATABASE_URL.")
        return
    yield Finding(True, f"database: {connection.display_name} {'.'.join(map(str, _version()))}")
    yield _migrated()
    yield _broker()
    yield from _workers()
    yield _room("state", Path(settings.STEELYARD_HOME))
    yield _room("cache", Path(settings.STEELYARD_CACHE))


def _version() -> tuple[int, ...]:
    return tuple(connection.get_database_version())


def _migrated() -> Finding:
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if not missing:
        return Finding(True, "all migrations are applied")
    return Finding(False, f"{len(missing)} migrations are not applied", "Run `python manage.py migrate`.")


def _broker() -> Finding:
    if queue.broker_answers():
        return Finding(True, f"broker: {settings.BROKER_URL.split('@')[-1]}")
    hint = (
        "Start `python manage.py up`, or set REDIS_URL." if settings.ENVIRONMENT.embedded_broker else "Check REDIS_URL."
    )
    return Finding(False, "no broker answers", hint)


def _workers() -> Iterator[Finding]:
    try:
        now = database_now()
        known = list(Worker.objects.filter(stopped_at__isnull=True).order_by("name"))
    except DatabaseError:  # not migrated yet, which was said
        return
    alive = [worker for worker in known if is_alive(worker, now)]
    if not alive:
        yield Finding(False, "no worker is connected", "Start one with `python manage.py worker`.")
    for worker in alive:
        names = ", ".join(device["name"] for device in worker.devices)
        yield Finding(True, f"worker {worker.name} on {worker.host}: {names}{' (draining)' if worker.draining else ''}")
    hosts = {worker.host for worker in alive}
    if len(hosts) > 1 and connection.vendor == "sqlite":
        yield Finding(False, f"workers on {len(hosts)} hosts share one SQLite file", "Set DATABASE_URL to PostgreSQL.")


def _room(name: str, folder: Path) -> Finding:
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    hint = "" if free >= LITTLE_ROOM else "Free some space; models and artifacts need some GiB."
    return Finding(True, f"{name}: {folder}, {free / 2**30:,.1f} GiB free", hint)
