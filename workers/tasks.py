"""Celery's side of an attempt: claim, supervise, and see to it that it has an end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import structlog
from django.conf import settings

from webapp.core import process_tree
from webapp.core.errors import StaleWrite
from webapp.runs import queue, services
from workers.app import app
from workers.identity import this_worker
from workers.marks import attempt_mark, environment_of

log = structlog.get_logger(__name__)


@app.task(name=queue.RUN_ATTEMPT, ignore_result=True)
def run_attempt(attempt_id: int, number: int) -> None:
    """Run one attempt; a second delivery finds it claimed and does nothing."""
    execute(attempt_id, number)


def execute(attempt_id: int, number: int, engine: Sequence[str] = ()) -> bool:
    """Claim an attempt, run it in a supervisor's process, and see to it that it has an end; False if not claimed.

    Args:
        attempt_id: of the attempt.
        number: of the attempt.
        engine: another command that speaks the engine's protocol, for tests.
    """
    name = this_worker().name
    attempt = services.attempt_claim(
        attempt_id=attempt_id, number=number, worker_name=name, log=f"{attempt_id // 1000}/{attempt_id}-{number}.log"
    )
    if attempt is None:
        log.info("attempt_refused", attempt=attempt_id, number=number)
        return False
    # A process of its own: it adopts orphans, and no signal to Celery's pool can cut it short.
    code = subprocess.run(
        [sys.executable, "-m", "workers.supervisor", str(attempt_id), str(number), *engine],
        env=environment_of(attempt_id, number, name),
        cwd=settings.BASE_DIR,
        stdin=subprocess.DEVNULL,
        check=False,
    ).returncode
    if code != 0:
        # The supervisor itself died: end what it left, then let the experiment be queued again.
        process_tree.kill_marked(attempt_mark(attempt_id, number))
        try:
            services.attempt_lost(
                attempt_id=attempt_id, number=number, actor=name, reason=f"the supervisor ended with code {code}"
            )
        except StaleWrite:
            log.info("attempt_had_ended", attempt=attempt_id, number=number)
    return True
