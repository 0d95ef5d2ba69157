"""Celery's configuration: one prefork child per device, one queue per worker, and a thread that keeps the books."""

from __future__ import annotations

import os
import sys
from typing import Any

import django
from celery import Celery
from celery.signals import celeryd_after_setup, celeryd_init, worker_ready, worker_shutdown, worker_shutting_down

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
django.setup()

from experiments.records import ExperimentError  # noqa: E402
from webapp.runs import queue  # noqa: E402 - needs Django
from workers.identity import Identity, this_worker  # noqa: E402
from workers.keeper import Keeper  # noqa: E402

app = queue.configure(Celery("steelyard", include=["workers.tasks"]))

_keepers: list[Keeper] = []


@celeryd_init.connect
def size_pool(conf: Any, **_: Any) -> None:
    """As many attempts at once as there are devices; a device that is not there ends the worker with one sentence."""
    try:
        conf.worker_concurrency = max(1, len(this_worker().devices))
    except ExperimentError as error:
        sys.exit(f"worker: {error.failure.message}. {error.failure.fix or ''}")


@celeryd_after_setup.connect
def listen(instance: Any, **_: Any) -> None:
    """Read this worker's own queue and no other."""
    instance.app.amqp.queues.select([queue.worker_queue(this_worker().name)])


@worker_ready.connect
def begin(**_: Any) -> None:
    """Announce the worker once it can take messages."""
    identity: Identity = this_worker()
    keeper = Keeper(identity)
    _keepers.append(keeper)
    keeper.start()


@worker_shutting_down.connect
def stop_leasing(**_: Any) -> None:
    """On the first signal: lease nothing new and hand back what runs."""
    for keeper in _keepers:
        keeper.drain()


@worker_shutdown.connect
def goodbye(**_: Any) -> None:
    """When nothing runs any more: the devices are gone."""
    for keeper in _keepers:
        keeper.finish()
