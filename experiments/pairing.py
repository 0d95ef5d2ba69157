"""Paired timing: baseline and candidate both live, one active at a time, A B B A ..., over several fresh processes.

Two processes of one artifact differ by about a percent for as long as they live (where their pages lie), which no
number of samples averages out. So timing goes in rounds: each round has a fresh process a side, and intervals are made
over rounds. The idle partner is blocked on its pipe and uses no core. Where both don't fit into memory, blocks
alternate with reloads, and the report says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from experiments.launch import Child, Events
from experiments.protocols import Block
from experiments.spec import Workload

#: Fresh processes a side: at least and at most, always even so that each side begins as often. Intervals have one
#: degree of freedom less.
MIN_ROUNDS, MAX_ROUNDS = 4, 8
#: Blocks a side within a round, at most.
BLOCKS = 4
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

    def start(self) -> None:
        """Start this side's process if it isn't live, from the main thread: a child dies with its parent's thread."""
        if self._child is None:
            self._child = self._start()
            self.opened = {}

    def open(self) -> Child:
        """This side's process, started and with its artifact loaded."""
        self.start()
        assert self._child is not None
        if not self.opened:
            self.opened = self._child.call("open", **self._opening)
        return self._child

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One command to this side's process."""
        return self.open().call(operation, **arguments)

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
    """How one batch size is timed: in each of ``rounds``, ``blocks`` blocks a side of this many requests each."""

    rounds: int
    blocks: int
    requests: dict[str, int]
    settle: dict[str, int]


def schedule(workload: Workload, latency_ns: dict[str, int], most: int, exactly: int | None = None) -> Schedule:
    """Enough requests a side for ``min_seconds`` and ``min_samples``, cut into equal blocks.

    Args:
        exactly: this many a side instead (rounded up to whole blocks), whatever they take.
        latency_ns: side -> warm latency. The side with fewer requests bounds the numbers of rounds and blocks.
        most: rounds that there will be.
    """
    wanted = {
        side: exactly or max(workload.min_samples, math.ceil(workload.min_seconds * 1e9 / max(1, latency)))
        for side, latency in latency_ns.items()
    }
    fewest = min(wanted.values())
    rounds = min(most, fewest)
    # Two blocks waste least of a given number.
    blocks = max(1, min(2 if exactly else BLOCKS, fewest // (2 * rounds)))
    return Schedule(
        rounds=rounds,
        blocks=blocks,
        requests={side: math.ceil(count / (rounds * blocks)) for side, count in wanted.items()},
        settle={side: int(latency < SETTLE_NS) for side, latency in latency_ns.items()},
    )


def measure(
    sides: list[Side],
    workload: Workload,
    events: Events,
    *,
    together: bool,
    closing: Callable[[], None],
    rounds: int | None = None,
    requests: Sequence[int] = (),
) -> tuple[Block, ...]:
    """Time every batch size; ``sides`` is [candidate] or [baseline, candidate].

    Args:
        together: both processes stay live within a round; otherwise the other one is closed before each block.
        closing: called between blocks, to check limits.
        rounds: this many instead of what is affordable.
        requests: for each batch size the number of timed requests a side, instead of what the workload asks for.

    Returns:
        One block a side, batch size and round: the round's blocks joined, ``pair`` is the round.
    """
    blocks: list[Block] = []
    timings: dict[int, Schedule] = {}
    rounds = rounds or affordable_rounds(workload, sum(side.opened["open_ns"] for side in sides) / 1e9)
    steps = rounds * len(workload.batch_sizes)
    started = time.monotonic()
    for number in range(rounds):
        if number:
            renew(sides, together)
        for position, batch_size in enumerate(workload.batch_sizes):
            if batch_size in timings and number >= timings[batch_size].rounds:
                continue
            latency: dict[str, int] = {}
            for side in sides:
                _alone(side, sides, together)
                latency[side.name] = side.call("warm", batch_size=batch_size, seconds=warm_seconds(workload))[
                    "latency_ns"
                ]
            if batch_size not in timings:
                timings[batch_size] = schedule(
                    workload, latency, rounds, exactly=requests[position] if requests else None
                )
                words = ", ".join(f"{side} {ns / 1e6:.1f} ms" for side, ns in latency.items())
                events.log(f"measure batch {batch_size}: warm {words}; {_in_words(timings[batch_size])}")
            blocks += _round(sides, workload, batch_size, number, timings[batch_size], together, closing)
            done = (number * len(workload.batch_sizes) + position + 1) / steps
            events.progress(
                done,
                f"round {number + 1} of {rounds}, batch {batch_size}",
                seconds_left=(time.monotonic() - started) * (1 - done) / done,
            )
        for side in sides:
            if together:
                side.read_memory()
    return tuple(blocks)


def affordable_rounds(workload: Workload, start_seconds: float) -> int:
    """Rounds whose fresh processes take no longer to start than the timing itself, between 4 and 8, even."""
    timing = 2 * workload.min_seconds * len(workload.batch_sizes)
    return max(MIN_ROUNDS, min(MAX_ROUNDS, 2 * int(timing / max(start_seconds, 1e-3) / 2)))


def renew(sides: list[Side], together: bool) -> None:
    """A fresh process a side. Both start at once: nothing is timed meanwhile."""
    for side in sides:
        side.close(grace=0)  # it holds nothing that would have to be put away
    if together:
        for side in sides:
            side.start()
        with ThreadPoolExecutor(len(sides)) as pool:
            for opened in [pool.submit(side.open) for side in sides]:
                opened.result()


def _round(
    sides: list[Side],
    workload: Workload,
    batch_size: int,
    number: int,
    timing: Schedule,
    together: bool,
    closing: Callable[[], None],
) -> list[Block]:
    seen: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for index in range(timing.blocks):
        for side in sides if (number + index) % 2 == 0 else sides[::-1]:
            _alone(side, sides, together)
            if not together:
                side.call("warm", batch_size=batch_size, seconds=warm_seconds(workload))
            name = side.name
            seen[name].append(
                side.call("block", batch_size=batch_size, requests=timing.requests[name], settle=timing.settle[name])
            )
            if not together:
                side.read_memory()
            closing()
    return [_joined(side.name, number, batch_size, seen[side.name]) for side in sides]


def _in_words(timing: Schedule) -> str:
    requests = ", ".join(f"{count} {side}" for side, count in timing.requests.items())
    return f"{timing.rounds} rounds of {timing.blocks} blocks a side, requests a block: {requests}"


def warm_seconds(workload: Workload) -> float:
    """Seconds of warm-up of a fresh process: a twentieth of the timing, between 0.1 and 0.5."""
    return min(0.5, max(0.1, workload.min_seconds / 20))


def _alone(side: Side, sides: list[Side], together: bool) -> None:
    if not together:
        for other in sides:
            if other is not side:
                other.close()


def _joined(side: Literal["candidate", "baseline"], number: int, batch_size: int, seen: list[dict[str, Any]]) -> Block:
    def every(key: str) -> tuple[int, ...]:
        return tuple(value for block in seen for value in block[key])

    return Block(
        side=side,
        pair=number,
        batch_size=batch_size,
        latency_ns=every("latency_ns"),
        ttft_ns=every("ttft_ns"),
        token_gaps_ns=every("token_gaps_ns"),
        tokens_out=sum(block["tokens_out"] for block in seen),
        wall_ns=sum(block["wall_ns"] for block in seen),
    )
