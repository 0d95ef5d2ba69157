"""Starts an engine, watches its whole process tree, and ends it. Knows nothing of databases: a listener does."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from experiments.records import Event
from webapp.core import process_tree
from workers.attempt_log import AttemptLog
from workers.event_lines import EventLines

Orders = Literal["go on", "cancel", "stale"]
Cause = Literal["exited", "cancel", "stale", "stopping", "timeout", "memory"]

BEAT_S = 1.0
FLUSH_S = 0.5
#: Between SIGTERM and SIGKILL. With the beat, a cancel ends within ten seconds.
GRACE_S = 5.0
#: The same where the worker itself is stopping, which has ten seconds for everything.
STOPPING_GRACE_S = 3.0
#: The engine watches its own limits and says so itself; this is for an engine that can't.
MEMORY_BEATS = 3
TIMEOUT_SLACK_S = 15.0


class Listener(Protocol):
    """What a supervision reports to."""

    def events(self, events: Sequence[Event]) -> None:
        """The engine said this."""

    def beat(self, memory_bytes: int | None) -> Orders:
        """About once a second while the engine lives; returns what to do."""


@dataclass(frozen=True)
class Limits:
    """What the process tree may use."""

    timeout_s: float
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How the engine ended.

    ``cause`` is why it was ended, or ``exited`` where it ended by itself; ``returncode`` is negative for a signal.
    """

    cause: Cause
    returncode: int
    seconds: float
    last_memory_bytes: int | None
    peak_memory_bytes: int | None


class Supervision:
    """One run of an engine command in a process group of its own.

    Args:
        command: the engine; ``{events_fd}`` in an argument becomes the number of the inherited descriptor.
        environment: of the engine and all it starts.
        folder: its working directory.
        log: receives its output.
        listener: receives its events.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        limits: Limits,
        log: AttemptLog,
        listener: Listener,
        grace_s: float = GRACE_S,
    ) -> None:
        self._command = command
        self._environment = environment
        self._folder = folder
        self._limits = limits
        self._log = log
        self._listener = listener
        self._grace_s = grace_s
        self._lines = EventLines()
        self._pending: list[Event] = []
        self._stop_requested = False
        self._over_memory = 0
        self._last_memory: int | None = None
        self._peak_memory: int | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def stop(self) -> None:
        """End the engine as ``stopping``; safe to call from a signal handler."""
        self._stop_requested = True
        os.write(self._wake_write, b"x")

    def run(self) -> Outcome:
        """Start the engine and return when it and every descendant have ended."""
        began = time.monotonic()
        events_read, events_write = os.pipe()
        output_read, output_write = os.pipe()
        try:
            engine = subprocess.Popen(
                [part.replace("{events_fd}", str(events_write)) for part in self._command],
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=(events_write,),
                cwd=self._folder,
                env=dict(self._environment),
                start_new_session=True,
                preexec_fn=process_tree.die_with_parent,
            )
        finally:
            os.close(events_write)
            os.close(output_write)
        with selectors.DefaultSelector() as ready:
            exit_fd = os.pidfd_open(engine.pid)
            for descriptor, name in (
                (events_read, "events"),
                (output_read, "output"),
                (exit_fd, "exit"),
                (self._wake_read, "wake"),
            ):
                ready.register(descriptor, selectors.EVENT_READ, name)
            cause = self._watch(engine, ready, began)
            if cause != "exited":
                self._end(engine, ready, min(self._grace_s, STOPPING_GRACE_S) if cause == "stopping" else self._grace_s)
            if engine.poll() is None:
                engine.kill()
            code = engine.wait()
            process_tree.kill_descendants()
            self._drain(ready)
            os.close(exit_fd)
        self._flush()
        for descriptor in (events_read, output_read, self._wake_read, self._wake_write):
            os.close(descriptor)
        return Outcome(cause, code, time.monotonic() - began, self._last_memory, self._peak_memory)

    def _watch(self, engine: subprocess.Popen[bytes], ready: selectors.BaseSelector, began: float) -> Cause:
        """Read until the engine ends or must be ended."""
        next_beat = began + BEAT_S
        next_flush = began + FLUSH_S
        while True:
            now = time.monotonic()
            if now >= next_flush:
                self._flush()
                next_flush = now + FLUSH_S
            if now >= next_beat:
                next_beat = now + BEAT_S
                if (cause := self._beat(engine.pid, now - began)) is not None:
                    return cause
            due = min(next_beat, next_flush) if self._pending else next_beat
            if "exit" in self._read(ready, max(0.0, due - time.monotonic())):
                return "exited"
            if self._stop_requested:
                return "stopping"

    def _beat(self, pid: int, seconds: float) -> Cause | None:
        self._last_memory = process_tree.memory_bytes(pid) or self._last_memory
        if self._last_memory is not None:
            self._peak_memory = max(self._peak_memory or 0, self._last_memory)
        limit = self._limits.memory_bytes
        over = limit is not None and self._last_memory is not None and self._last_memory > limit
        self._over_memory = self._over_memory + 1 if over else 0
        if self._over_memory >= MEMORY_BEATS:
            return "memory"
        if seconds > self._limits.timeout_s:
            return "timeout"
        match self._listener.beat(self._last_memory):
            case "cancel":
                return "cancel"
            case "stale":
                return "stale"
        return None

    def _end(self, engine: subprocess.Popen[bytes], ready: selectors.BaseSelector, grace_s: float) -> None:
        """SIGTERM to the engine, which ends its own; after the grace SIGKILL to whatever is left of the tree."""
        engine.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while (left := deadline - time.monotonic()) > 0:
            if "exit" in self._read(ready, left):
                return

    def _read(self, ready: selectors.BaseSelector, timeout: float) -> set[str]:
        """Wait for something to read, read it, and say what was ready."""
        seen = set()
        for key, _ in ready.select(timeout):
            seen.add(key.data)
            if key.data == "exit":
                continue
            piece = os.read(key.fd, 1 << 16)
            if not piece:
                ready.unregister(key.fd)
            elif key.data == "output":
                self._log.feed(piece)
            elif key.data == "events":
                self._receive(piece)
        return seen

    def _drain(self, ready: selectors.BaseSelector) -> None:
        """What still lies in the pipes; every writer is dead by now."""
        ready.unregister(next(key.fd for key in ready.get_map().values() if key.data == "exit"))
        while any(key.data in ("events", "output") for key in ready.get_map().values()):
            if not self._read(ready, 1.0):
                return

    def _receive(self, piece: bytes) -> None:
        for event in self._lines.feed(piece):
            self._pending.append(event)
            if (text := describe(event)) is not None:
                self._log.line(text)
        for complaint in self._lines.complaints:
            self._log.line(f"[supervisor] {complaint}")
        self._lines.complaints.clear()

    def _flush(self) -> None:
        if self._pending:
            batch, self._pending = self._pending, []
            self._listener.events(batch)


def describe(event: Event) -> str | None:
    """An event as a line of the log; None for what is no news there."""
    match event.kind:
        case "stage" if event.state is not None:
            return f"[{event.stage}] {event.state}" + (f": {event.message}" if event.message else "")
        case "log":
            return event.message
        case "failure" if event.failure is not None:
            return f"[failure] {event.failure.kind.value}: {event.failure.message}"
    return None
