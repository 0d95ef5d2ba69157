"""The other end of :class:`experiments.launch.Child`: reads commands, answers them, ends with its parent."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from experiments.launch import die_with_parent
from experiments.records import ExperimentError, Failure, FailureKind

Reply = Callable[[dict[str, Any]], None]
Handler = Callable[..., dict[str, Any]]

#: Role -> module whose ``handlers(reply)`` gives the operations.
ROLES = {"build": "experiments.builder", "measure": "experiments.measured"}


def main(argv: list[str]) -> int:
    """Serve commands until the pipe closes. ``argv``: role, command fd, reply fd, parent pid."""
    role, command_fd, reply_fd, parent = argv[0], int(argv[1]), int(argv[2]), int(argv[3])
    die_with_parent(parent)
    # Ctrl-C is the parent's to handle; it was blocked at the start, and what this process starts ignores it too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.set_inheritable(command_fd, False)
    os.set_inheritable(reply_fd, False)

    def reply(message: dict[str, Any]) -> None:
        view = memoryview(json.dumps(message).encode() + b"\n")
        while view:
            view = view[os.write(reply_fd, view) :]

    operations: dict[str, Handler] | None = None
    with os.fdopen(command_fd, "rb") as commands:
        for line in commands:
            command = json.loads(line)
            try:
                if operations is None:
                    operations = importlib.import_module(ROLES[role]).handlers(reply)
                result = operations[command.pop("op")](**command)
            except ExperimentError as error:
                reply({"kind": "failure", "failure": error.failure.model_dump(mode="json")})
            except Exception as error:  # the boundary of the process: everything becomes a typed failure
                traceback.print_exc()
                sys.stderr.flush()
                reply({"kind": "failure", "failure": typed(error).model_dump(mode="json")})
            else:
                reply({"kind": "result", **result})
    return 0


def typed(error: Exception) -> Failure:
    """The failure that an unforeseen exception stands for."""
    text = f"{type(error).__name__}: {error}"
    out_of_memory = isinstance(error, MemoryError) or any(
        mark in text for mark in ("can't allocate memory", "OutOfMemoryError", "bad allocation", "bad_alloc")
    )
    if out_of_memory:
        return Failure(
            kind=FailureKind.OUT_OF_MEMORY,
            message="the process could not get the memory it asked for",
            fix="Use a smaller batch size or model, or a worker with more memory.",
            detail={"error": text[:500], "peak_bytes": peak_rss()},
        )
    if isinstance(error, OSError) and error.errno == 28:
        return Failure(kind=FailureKind.DISK_FULL, message="no space left on the disk", detail={"error": text[:500]})
    return Failure(kind=FailureKind.INTERNAL, message=text[:500] or type(error).__name__)


def peak_rss() -> int:
    """High-water mark of this process's resident memory in bytes (fresh process, hence this run's own)."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
