"""The processes that one parent keeps: started in order, restarted if they die, ended in order leaving none."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import structlog

from webapp.core import process_tree

log = structlog.get_logger(__name__)

#: A service that dies so often within a minute is given up.
MAX_RESTARTS = 5

#: A log larger than this is put aside at the next start (bytes).
LOG_LIMIT = 5 << 20


class ServiceFailed(Exception):
    """A service that does not start or dies again and again; the message ends with its log's last lines."""


@dataclass
class Service:
    """One long-lived process and its descendants, in a process group of its own that ends with its parent.

    Attributes:
        command: what to start.
        environment: of the process.
        folder: its working directory.
        log: file that gets its output.
        answers: True once it can be used.
        stop_within_s: from SIGTERM to SIGKILL.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    answers: Callable[[], bool]
    stop_within_s: float
    _process: subprocess.Popen[bytes] | None = None
    _starts: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Start it; returns at once."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".old.log"))
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=dict(self.environment),
                process_group=0,
                preexec_fn=_end_with_parent,
            )
        self._starts.append(time.monotonic())

    @property
    def pid(self) -> int:
        """Its process, 0 if it was not started."""
        return self._process.pid if self._process is not None else 0

    @property
    def dead(self) -> bool:
        """True if it was started and has ended."""
        return self._process is not None and self._process.poll() is not None

    def revive(self) -> None:
        """Start it again if it has died.

        Raises:
            ServiceFailed: it dies again and again.
        """
        if not self.dead:
            return
        self._starts = [at for at in self._starts if time.monotonic() - at < 60]
        if len(self._starts) >= MAX_RESTARTS:
            raise ServiceFailed(f"the {self.name} keeps dying; its log {self.log} ends with:\n{self.log_tail()}")
        assert self._process is not None
        log.warning("service_died", service=self.name, returncode=self._process.returncode, log=str(self.log))
        self.start()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to whatever is left of its tree."""
        if self._process is None:
            return
        tree = process_tree.descendants(self._process.pid)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=self.stop_within_s)
            except subprocess.TimeoutExpired:
                log.warning("service_killed", service=self.name)
                tree += process_tree.descendants(self._process.pid)
                self._process.kill()
                self._process.wait()
        process_tree.kill([process for process in tree if _still_it(process)])
        self._process = None

    def log_tail(self, lines: int = 15) -> str:
        """The end of its log."""
        if not self.log.exists():
            return "(empty)"
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 8192))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


class Household:
    """All services of one parent."""

    def __init__(self) -> None:
        process_tree.adopt_orphans()
        self._services: list[Service] = []

    def start(self, service: Service) -> None:
        """Start one more; it is ended before those that were started earlier."""
        self._services.append(service)
        service.start()

    def wait_for(self, service: Service, *, timeout_s: float, stop_requested: Callable[[], bool]) -> None:
        """Return once the service answers or a stop is requested.

        Raises:
            ServiceFailed: it died or did not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while not stop_requested() and not service.answers():
            if service.dead:
                raise ServiceFailed(f"the {service.name} did not start; its log ends with:\n{service.log_tail()}")
            if time.monotonic() > deadline:
                raise ServiceFailed(
                    f"the {service.name} did not answer within {timeout_s:.0f} s; its log {service.log} ends with:\n"
                    f"{service.log_tail()}"
                )
            time.sleep(0.05)  # asks a process that can't tell us by itself

    def look_after(self) -> None:
        """Start again whatever has died, and collect adopted orphans."""
        for service in self._services:
            service.revive()
        process_tree.collect_zombies(keep=[service.pid for service in self._services])

    def stop(self) -> None:
        """End all, the newest first, then every descendant that is left."""
        for service in reversed(self._services):
            service.stop()
        self._services.clear()
        process_tree.kill_descendants()


def _end_with_parent() -> None:
    process_tree.die_with_parent(signal.SIGTERM)


def _still_it(process: psutil.Process) -> bool:
    """True unless the process has ended (its number may belong to another one by now)."""
    return bool(process.is_running())


def inherited(**changes: str) -> dict[str, str]:
    """This process's environment with changes."""
    return {**os.environ, **changes}
