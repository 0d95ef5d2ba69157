"""The typed end of an engine that left no report. Pure."""

from __future__ import annotations

import signal
from typing import Any

from experiments.records import Failure, FailureKind
from workers.supervision import Outcome


def failure_of(outcome: Outcome, resources: dict[str, Any], said: Failure | None, tail: tuple[str, ...]) -> Failure:
    """The typed end of an engine that left no report.

    Args:
        outcome: how its process ended.
        resources: the experiment's limits.
        said: the last failure that it sent as an event, if any.
        tail: the newest lines of its log.
    """
    memory = outcome.last_memory_bytes
    detail: dict[str, Any] = {
        "returncode": outcome.returncode,
        "seconds": round(outcome.seconds, 1),
        "last_memory_bytes": memory,
        "peak_memory_bytes": outcome.peak_memory_bytes,
    }
    held = f"; its memory was last seen at {memory / 2**20:,.0f} MiB" if memory else ""
    if outcome.cause == "timeout":
        return Failure(
            kind=FailureKind.TIMEOUT,
            message=f"stopped after {outcome.seconds:,.0f} s; the limit is {resources['timeout_s']:,} s",
            fix="Raise resources.timeout_s, or shorten the workload.",
            field="resources.timeout_s",
            detail=detail,
            log_tail=tail,
        )
    if outcome.cause == "memory":
        return Failure(
            kind=FailureKind.OUT_OF_MEMORY,
            message=f"stopped because it used more than its limit of {resources['memory_mib']:,} MiB{held}",
            fix="Raise resources.memory_mib, or choose a smaller model or batch size.",
            field="resources.memory_mib",
            detail=detail,
            log_tail=tail,
        )
    if said is not None:
        return said.model_copy(update={"log_tail": said.log_tail or tail})
    if any("No space left on device" in line for line in tail):
        return Failure(
            kind=FailureKind.DISK_FULL,
            message="no space left on the worker's disk",
            fix="Free some space, or set STEELYARD_HOME and STEELYARD_CACHE to a larger disk.",
            detail=detail,
            log_tail=tail,
        )
    if outcome.returncode == -signal.SIGKILL:
        return Failure(
            kind=FailureKind.KILLED,
            message=f"killed (signal 9), probably out of memory{held}",
            fix="Choose a smaller model or batch size, or a worker with more memory, and run it again.",
            detail=detail,
            log_tail=tail,
        )
    if outcome.returncode < 0:
        name = signal.Signals(-outcome.returncode).name
        return Failure(
            kind=FailureKind.KILLED,
            message=f"killed (signal {-outcome.returncode}, {name}){held}",
            fix="The log's last lines may say why; run it again.",
            detail=detail,
            log_tail=tail,
        )
    return Failure(
        kind=FailureKind.INTERNAL,
        message=f"the engine ended with exit code {outcome.returncode} and no report",
        fix="The log's last lines say more; if they don't, run it again and report the log.",
        detail=detail,
        log_tail=tail,
    )
