"""How the engine starts processes: fresh children with a private command channel, limits, and an event stream.

A child is ``python -m experiments.child ROLE``. Commands and replies are JSON lines over two inherited pipes; what
the child prints is only log. Between commands the child is blocked on its pipe, so an idle partner uses no core.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

import psutil

from experiments.records import Event, ExperimentError, Failure, FailureKind, Measurement

LINE_LIMIT = 64 * 1024
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the pipe's end does it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


class Events:
    """The event stream of one experiment: numbered, at most 64 KiB a line.

    Args:
        write: receives each event; :func:`to_descriptor` makes one that writes JSON lines.
    """

    def __init__(self, write: Callable[[Event], None]) -> None:
        self._write = write
        self._seq = 0
        self._lock = threading.Lock()
        self._base = 0.0
        self._span = 0.0
        self._told = 0.0
        self.stage_seconds: dict[str, float] = {}

    def emit(
        self, kind: Literal["stage", "progress", "log", "measurement", "report", "failure"], **fields: Any
    ) -> None:
        """Send one event now."""
        with self._lock:
            self._seq += 1
            self._write(Event(seq=self._seq, t_ns=time.time_ns(), kind=kind, **fields))

    @contextmanager
    def stage(self, name: str, share: float) -> Iterator[None]:
        """A named stage that is ``share`` (0 to 1) of the whole experiment."""
        self._base, self._span = self._base + self._span, share
        started = time.monotonic()
        self.emit("stage", stage=name, state="started", fraction=min(1.0, self._base))
        yield
        self.stage_seconds[name] = round(time.monotonic() - started, 3)
        self.emit("stage", stage=name, state="done", fraction=min(1.0, self._base + share))

    def progress(self, fraction: float, message: str | None = None, seconds_left: float | None = None) -> None:
        """``fraction`` (0 to 1) of the current stage is done; a stage of several parts never goes back."""
        self._told = max(self._told, min(1.0, self._base + self._span * min(1.0, max(0.0, fraction))))
        self.emit("progress", fraction=self._told, message=message, seconds_left=seconds_left)

    def log(self, message: str) -> None:
        """One line for the experiment's log."""
        self.emit("log", message=message[:4000])

    def measurement(self, measurement: Measurement) -> None:
        """A number as soon as it is known; its samples stay in the report."""
        self.emit("measurement", measurement=measurement.model_copy(update={"samples": None}))


def to_descriptor(descriptor: int) -> Callable[[Event], None]:
    """A writer of JSON lines to an inherited file descriptor."""

    def write(event: Event) -> None:
        line = event.model_dump_json(exclude_none=True).encode() + b"\n"
        if len(line) > LINE_LIMIT:
            short = event.model_copy(update={"message": "(shortened) " + (event.message or "")[:1000], "failure": None})
            line = short.model_dump_json(exclude_none=True).encode() + b"\n"
        view = memoryview(line)
        while view:
            view = view[os.write(descriptor, view) :]

    return write


class Limits:
    """The wall clock and the memory that an experiment may use, over all of its processes."""

    def __init__(self, timeout_s: float, memory_mib: int | None) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._memory = memory_mib * 1024 * 1024 if memory_mib else None

    def check(self) -> None:
        """Raise ``timeout`` or ``out_of_memory`` if a limit was passed."""
        if time.monotonic() > self._deadline:
            raise ExperimentError(
                FailureKind.TIMEOUT,
                f"the experiment ran longer than its limit of {self._timeout_s:g} s",
                fix="Raise resources.timeout_s, or measure for less time.",
                field="resources.timeout_s",
            )
        if self._memory is not None:
            used = tree_rss(os.getpid())
            if used > self._memory:
                raise ExperimentError(
                    FailureKind.OUT_OF_MEMORY,
                    f"the experiment used {used / 2**20:,.0f} MiB, its limit is {self._memory / 2**20:,.0f} MiB",
                    fix="Raise resources.memory_mib, or choose a smaller batch size.",
                    field="resources.memory_mib",
                    peak_bytes=used,
                )


def tree_rss(pid: int) -> int:
    """Resident bytes of a process and all its descendants, each process counted once (shared pages per process)."""
    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


@contextmanager
def _without_interrupt() -> Iterator[None]:
    """Start a process that Ctrl-C does not reach: a blocked signal stays blocked in it, and waits in this one.

    Ctrl-C goes to the whole process group of a terminal; a child that is still importing can't ignore it yet.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child:
    """A fresh Python process that answers commands, one at a time.

    Args:
        role: ``build`` or ``measure``.
        events: where its log lines and progress go.
        limits: checked once a second while a reply is awaited.
    """

    def __init__(self, role: str, events: Events, limits: Limits, environment: dict[str, str] | None = None) -> None:
        self.role = role
        self._events = events
        self._limits = limits
        self.tail: deque[str] = deque(maxlen=40)
        command_read, self._command = os.pipe()
        self._reply, reply_write = os.pipe()
        self._buffer = bytearray()
        with _without_interrupt():
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "experiments.child",
                    role,
                    str(command_read),
                    str(reply_write),
                    str(os.getpid()),
                ],
                pass_fds=(command_read, reply_write),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, **(environment or {})},
            )
        os.close(command_read)
        os.close(reply_write)
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._follow, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def serve(self, events: Events, limits: Limits) -> None:
        """From now on its lines and progress go to ``events``, within ``limits``."""
        self._events, self._limits = events, limits

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._process.pid

    def _follow(self, stream: TextIO) -> None:
        for line in stream:
            # A progress bar redraws its line with carriage returns: only its last state is news.
            text = line.rstrip("\n").rstrip("\r").rsplit("\r", 1)[-1]
            if text.strip():
                self.tail.append(text[:2000])
                self._events.log(f"[{self.role}] {text}")

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its result, forwarding the child's progress meanwhile.

        Raises:
            ExperimentError: the child's own failure; ``killed`` or ``out_of_memory`` if it died; ``timeout``.
        """
        line = json.dumps({"op": operation, **arguments}).encode() + b"\n"
        try:
            os.write(self._command, line)
        except BrokenPipeError:
            raise self._death() from None
        while True:
            reply = self._read()
            match reply.get("kind"):
                case "log":
                    self._events.log(reply["message"])
                case "progress":
                    self._events.progress(reply["fraction"], reply.get("message"), reply.get("seconds_left"))
                case "failure":
                    failure = Failure.model_validate(reply["failure"])
                    raise ExperimentError.of(failure.model_copy(update={"log_tail": tuple(self.tail)[-20:]}))
                case _:
                    return reply

    def _read(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._reply], [], [], 1.0)
            if not ready:
                self._limits.check()
                continue
            piece = os.read(self._reply, 1 << 16)
            if not piece:
                raise self._death()
            self._buffer += piece
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        loaded: dict[str, Any] = json.loads(line)
        return loaded

    def _death(self) -> ExperimentError:
        code = self._process.wait()
        self._reader.join(timeout=2)
        tail = tuple(self.tail)[-20:]
        if code == -signal.SIGKILL:
            failure = Failure(
                kind=FailureKind.KILLED,
                message=f"the {self.role} process was killed (signal 9), probably out of memory",
                fix="Use a smaller batch size or model, or a worker with more memory.",
                detail={"signal": 9},
                log_tail=tail,
            )
        elif code < 0:
            failure = Failure(
                kind=FailureKind.KILLED,
                message=f"the {self.role} process was ended by signal {-code} ({signal.Signals(-code).name})",
                detail={"signal": -code},
                log_tail=tail,
            )
        else:
            failure = Failure(
                kind=FailureKind.INTERNAL,
                message=f"the {self.role} process ended with exit code {code} and no answer",
                log_tail=tail,
            )
        return ExperimentError.of(failure)

    def close(self, grace: float = 5.0) -> None:
        """End the child: close its pipe, wait up to ``grace`` seconds, then kill."""
        if self._command >= 0:
            os.close(self._command)
            self._command = -1
        try:
            self._process.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=2)
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._reply >= 0:
            os.close(self._reply)
            self._reply = -1

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close(grace=5.0 if exception[0] is None else 0.0)


def restrict(cores: tuple[int, ...]) -> None:
    """Bind this process and all it starts to ``cores`` (no-op where the system can't)."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def write_json(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text)
    os.replace(scratch, path)
