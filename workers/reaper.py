"""What a worker's earlier life left, and what a stopping worker hands back."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil
import structlog

from webapp.core import process_tree
from webapp.core.errors import Conflict, StaleWrite
from webapp.runs import services
from webapp.runs.models import Attempt, Worker
from webapp.runs.services.attempts import ALIVE
from workers.marks import ATTEMPT, worker_mark

log = structlog.get_logger(__name__)


def sweep(*, worker_name: str) -> int:
    """End the processes and give up the attempts that an earlier life of this worker left; returns how many attempts.

    Only processes that carry an attempt's mark are ended: Celery's own carry the worker's name alone.
    """
    left = [p for p in process_tree.marked(worker_mark(worker_name)) if _has_attempt(p)]
    if left:
        log.warning("swept_processes", worker=worker_name, pids=[p.pid for p in left])
        process_tree.kill(left)
    lost = 0
    rows = Attempt.objects.filter(worker_name=worker_name, status__in=ALIVE).values_list("id", "number", "claimed_at")
    for attempt_id, number, claimed_at in list(rows):
        try:
            services.attempt_lost(
                attempt_id=attempt_id,
                number=number,
                actor=worker_name,
                reason=f"worker {worker_name} was restarted",
                fault=claimed_at is not None,
            )
            lost += 1
        except StaleWrite:
            log.info("attempt_had_ended", attempt=attempt_id, number=number)
    return lost


def refuse_namesake(*, worker_name: str, host: str) -> None:
    """Return unless a worker of this name lives on this host: its attempts are not ours to sweep.

    Raises:
        Conflict: it does.
    """
    known = Worker.objects.filter(name=worker_name, host=host, stopped_at__isnull=True).first()
    if known is None or known.pid == os.getpid() or not psutil.pid_exists(known.pid):
        return
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        if any("celery" in word for word in psutil.Process(known.pid).cmdline()):
            raise Conflict(f"a worker named {worker_name!r} already runs here (process {known.pid}); choose a --name")


def hand_back(*, parent: int) -> int:
    """Ask every supervisor below ``parent`` to stop its engine and queue its experiment again; returns how many."""
    asked = 0
    for process in process_tree.descendants(parent):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if "workers.supervisor" in process.cmdline():
                os.kill(process.pid, signal.SIGTERM)
                asked += 1
    return asked


def _has_attempt(process: psutil.Process) -> bool:
    try:
        return ATTEMPT in process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
        return False
