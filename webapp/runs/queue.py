"""The only file that knows Celery's task names. The database is the truth; Celery only carries messages."""

from __future__ import annotations

from functools import cache

import structlog
from celery import Celery
from django.conf import settings
from kombu.exceptions import OperationalError

log = structlog.get_logger(__name__)

RUN_ATTEMPT = "workers.run_attempt"


def worker_queue(worker_name: str) -> str:
    """The queue that this worker alone reads."""
    return f"worker.{worker_name}"


def configure(app: Celery) -> Celery:
    """What producers and workers must agree on."""
    app.conf.update(
        broker_url=settings.BROKER_URL,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 2, "visibility_timeout": 3600},
        task_publish_retry=False,  # the scheduler sends again what was not claimed
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        task_default_queue="steelyard",
    )
    return app


@cache
def producer() -> Celery:
    """The application that sends; it runs nothing, and gives up at once where no broker is: a page waits for it."""
    app = configure(Celery("steelyard"))
    app.conf.broker_transport_options = {
        **app.conf.broker_transport_options,
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0,
    }
    return app


def send_attempt(*, worker_name: str, attempt_id: int, number: int) -> bool:
    """Ask a worker to run an attempt; False if the broker does not answer (the next tick sends again)."""
    try:
        producer().send_task(RUN_ATTEMPT, args=[attempt_id, number], queue=worker_queue(worker_name))
    except (OperationalError, OSError) as error:
        log.warning("broker_unreachable", error=str(error), attempt=attempt_id)
        return False
    return True


def broker_answers() -> bool:
    """True if the broker accepts a connection within two seconds."""
    try:
        with producer().connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=2)
            connection.default_channel.client.ping()  # type: ignore[attr-defined]  # Redis has it
    except Exception as error:  # every transport has its own errors; any of them means no
        log.info("broker_unreachable", error=str(error))
        return False
    return True
