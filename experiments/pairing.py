"""Paired timing: baseline and candidate both live, one active at a time, A B B A ...

The idle partner is blocked on its pipe and uses no core. Where both don't fit into memory, blocks alternate with
reloads, and the report says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from experiments.launch import Child, Events
from experiments.protocols import Block
from experiments.spec import Workload

#: Pairs of blocks that a ratio is made of; more pairs make the interval honest, longer blocks make it narrow.
MIN_PAIRS, MAX_PAIRS = 8, 24
#: Requests shorter than this get one untimed request after the partner's block, since its caches are cold.
SETTLE_NS = 500_000_000


class Side:
    """One of the two measured processes: opened on demand, closed to make room."""

    def __init__(
        self, name: Literal["candidate", "baseline"], start: Callable[[], Child], opening: dict[str, Any]
    ) -> None:
        self.name = name
        self._start = start
        self._opening = opening
        self._child: Child | None = None
        self.opened: dict[str, Any] = {}
        self.memory: dict[str, Any] = {}

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One command to this side's process, which is started and opened if it isn't live."""
        if self._child is None:
            self._child = self._start()
            self.opened = self._child.call("open", **self._opening)
        return self._child.call(operation, **arguments)

    def read_memory(self) -> None:
        """Keep the largest peaks that the process of this side has told."""
        reading = self.call("memory")
        for key, value in reading.items():
            if key != "kind" and (self.memory.get(key) is None or (value or 0) > self.memory[key]):
                self.memory[key] = value

    def close(self, grace: float = 5.0) -> None:
        """End this side's process."""
        if self._child is not None:
            self._child.close(grace)
            self._child = None


@dataclass(frozen=True)
class Schedule:
    """How one batch size is timed: ``pairs`` blocks a side of this many requests each."""

    pairs: int
    requests: dict[str, int]
    settle: dict[str, int]


def schedule(workload: Workload, latency_ns: dict[str, int]) -> Schedule:
    """Enough requests a side for ``min_seconds`` and ``min_samples``, cut into equal blocks.

    ``latency_ns``: side -> warm latency. The slower side's number of requests bounds the number of pairs.
    """
    wanted = {
        side: max(workload.min_samples, math.ceil(workload.min_seconds * 1e9 / max(1, latency)))
        for side, latency in latency_ns.items()
    }
    pairs = max(min(MIN_PAIRS, *wanted.values()), min(MAX_PAIRS, *(count // 2 for count in wanted.values())))
    return Schedule(
        pairs=pairs,
        requests={side: math.ceil(count / pairs) for side, count in wanted.items()},
        settle={side: int(latency < SETTLE_NS) for side, latency in latency_ns.items()},
    )


def measure(
    sides: list[Side], workload: Workload, events: Events, *, together: bool, closing: Callable[[], None]
) -> tuple[Block, ...]:
    """Time every batch size; ``sides`` is [candidate] or [baseline, candidate].

    Args:
        together: both processes stay live; otherwise the other one is closed before each block.
        closing: called between blocks, to check limits.
    """
    blocks: list[Block] = []
    share = 1 / len(workload.batch_sizes)
    for number, batch_size in enumerate(workload.batch_sizes):
        latency: dict[str, int] = {}
        for side in sides:
            _alone(side, sides, together)
            latency[side.name] = int(
                side.call("warm", batch_size=batch_size, seconds=warm_seconds(workload))["latency_ns"]
            )
        timing = schedule(workload, latency)
        words = ", ".join(f"{side} {ns / 1e6:.1f} ms" for side, ns in latency.items())
        events.log(
            f"measure batch {batch_size}: warm {words}; {timing.pairs} pairs of blocks, requests {timing.requests}"
        )
        started = time.monotonic()
        for pair in range(timing.pairs):
            order = sides if pair % 2 == 0 else sides[::-1]
            for side in order:
                _alone(side, sides, together)
                if not together:
                    side.call("warm", batch_size=batch_size, seconds=warm_seconds(workload))
                seen = side.call(
                    "block",
                    batch_size=batch_size,
                    requests=timing.requests[side.name],
                    settle=timing.settle[side.name],
                )
                blocks.append(_block(side.name, pair, batch_size, seen))
                if not together:
                    side.read_memory()
            closing()
            done = (pair + 1) / timing.pairs
            elapsed = time.monotonic() - started
            left = elapsed / done * (1 - done + len(workload.batch_sizes) - number - 1)
            events.progress(
                (number + done) * share, f"batch {batch_size}: pair {pair + 1} of {timing.pairs}", seconds_left=left
            )
    for side in sides:
        if together:
            side.read_memory()
    return tuple(blocks)


def warm_seconds(workload: Workload) -> float:
    """Seconds of warm-up: a tenth of the timing, between 0.2 and 1."""
    return min(1.0, max(0.2, workload.min_seconds / 10))


def _alone(side: Side, sides: list[Side], together: bool) -> None:
    if not together:
        for other in sides:
            if other is not side:
                other.close()


def _block(side: Literal["candidate", "baseline"], pair: int, batch_size: int, seen: dict[str, Any]) -> Block:
    return Block(
        side=side,
        pair=pair,
        batch_size=batch_size,
        latency_ns=tuple(seen["latency_ns"]),
        ttft_ns=tuple(seen["ttft_ns"]),
        token_gaps_ns=tuple(seen["token_gaps_ns"]),
        tokens_out=seen["tokens_out"],
        wall_ns=seen["wall_ns"],
    )
