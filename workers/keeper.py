"""The thread in each worker's parent process that keeps the books: announce, heartbeat, schedule, say goodbye."""

from __future__ import annotations

import os
import signal
import threading

import structlog
from django.db import DatabaseError, close_old_connections, connection

from webapp.core.errors import Conflict, Invalid
from webapp.runs import scheduling, services
from workers import reaper
from workers.identity import Identity

log = structlog.get_logger(__name__)

TICK_S = 2.0


class Keeper(threading.Thread):
    """Ticks every two seconds until the worker stops; a database that is away for a while is waited for."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(name="keeper", daemon=True)
        self._identity = identity
        self._draining = threading.Event()
        self._finished = threading.Event()
        self._woken = threading.Event()

    def run(self) -> None:
        """Announce, then tick until the end."""
        announced = False
        handed_back = False
        while not self._finished.is_set():
            try:
                close_old_connections()
                if not announced:
                    reaper.refuse_namesake(worker_name=self._identity.name, host=self._identity.host)
                    reaper.sweep(worker_name=self._identity.name)
                    self._announce()
                    announced = True
                if self._draining.is_set() and not handed_back:
                    services.worker_drain(name=self._identity.name)
                    reaper.hand_back(parent=os.getpid())
                    handed_back = True
                services.worker_heartbeat(name=self._identity.name)
                scheduling.tick(actor=self._identity.name)
            except DatabaseError as error:
                log.warning("database_unreachable", error=str(error))
            except (Conflict, Invalid) as error:
                log.error("worker_refused", reason=error.message)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except Exception:  # the books must be kept: whatever was wrong with one tick, the next one is made
                log.exception("tick_failed")
            self._woken.wait(TICK_S)
            self._woken.clear()
        if not announced:
            return
        try:
            services.worker_stop(name=self._identity.name)
        except DatabaseError as error:
            log.warning("goodbye_not_written", error=str(error))
        connection.close()

    def drain(self) -> None:
        """Lease nothing new and stop what runs; safe to call from a signal handler."""
        self._draining.set()
        self._woken.set()

    def finish(self) -> None:
        """Say goodbye; waits for the last write."""
        self._finished.set()
        self._woken.set()
        self.join(timeout=5)

    def _announce(self) -> None:
        me = self._identity
        services.worker_register(
            name=me.name, host=me.host, pid=os.getpid(), devices=list(me.devices), facts=me.facts, labels=me.labels
        )
        log.info("worker_ready", worker=me.name, devices=[device.name for device in me.devices])
