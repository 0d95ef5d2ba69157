"""A supervision starts an engine, hears it, and ends all of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from experiments.records import Event
from webapp.core import process_tree
from workers.attempt_log import AttemptLog
from workers.endings import failure_of
from workers.supervision import Limits, Orders, Outcome, Supervision

ROOT = Path(__file__).resolve().parents[2]


class Hearer:
    """Keeps what it hears and gives the orders it was told to give."""

    def __init__(self, orders: Callable[[], Orders] = lambda: "go on") -> None:
        self.heard: list[Event] = []
        self.memory: list[int | None] = []
        self._orders = orders

    def events(self, events: Sequence[Event]) -> None:
        self.heard += events

    def beat(self, memory_bytes: int | None) -> Orders:
        self.memory.append(memory_bytes)
        return self._orders()


def supervise(
    habit: str,
    folder: Path,
    hearer: Hearer | None = None,
    limits: Limits | None = None,
    grace_s: float = 1.0,
    ready: Callable[[Supervision], None] | None = None,
) -> tuple[Outcome, AttemptLog]:
    process_tree.adopt_orphans()
    spec = {"variant": {"name": "v"}, "baseline": {"name": "b"}}
    (folder / "spec.json").write_text(json.dumps(spec))
    log = AttemptLog(folder / "log")
    supervision = Supervision(
        [sys.executable, "-m", "tests.workers.engines", habit, "{events_fd}", str(folder)],
        environment={**os.environ, "STEELYARD_ATTEMPT": folder.name},
        folder=ROOT,
        limits=limits or Limits(timeout_s=60),
        log=log,
        listener=hearer or Hearer(),
        grace_s=grace_s,
    )
    if ready is not None:
        ready(supervision)
    try:
        return supervision.run(), log
    finally:
        log.close()


def left_of(folder: Path) -> list[psutil.Process]:
    return process_tree.marked({"STEELYARD_ATTEMPT": folder.name})


def test_an_engine_is_heard_in_order_and_its_output_is_logged(tmp_path: Path) -> None:
    hearer = Hearer()
    outcome, _ = supervise("succeed", tmp_path, hearer)
    assert (outcome.cause, outcome.returncode) == ("exited", 0)
    assert [event.kind for event in hearer.heard] == ["stage", "progress", "log", "measurement", "report"]
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["[load] started", "half way", "loading"]


def test_a_cancel_ends_every_descendant_within_ten_seconds(tmp_path: Path) -> None:
    hearer = Hearer(lambda: "cancel" if any(e.stage == "measure" for e in hearer.heard) else "go on")
    began = time.monotonic()
    outcome, _ = supervise("linger", tmp_path, hearer, grace_s=5.0)
    assert outcome.cause == "cancel"
    assert time.monotonic() - began < 10
    assert left_of(tmp_path) == []


def test_a_stop_is_obeyed_at_once(tmp_path: Path) -> None:
    def stop_soon(supervision: Supervision) -> None:
        threading.Timer(0.7, supervision.stop).start()

    began = time.monotonic()
    outcome, _ = supervise("linger", tmp_path, ready=stop_soon)
    assert outcome.cause == "stopping"
    assert time.monotonic() - began < 4
    assert left_of(tmp_path) == []


def test_a_lost_lease_ends_the_engine(tmp_path: Path) -> None:
    outcome, _ = supervise("linger", tmp_path, Hearer(lambda: "stale"))
    assert outcome.cause == "stale"
    assert left_of(tmp_path) == []


def test_killed_by_signal_nine_says_so_with_memory_and_log(tmp_path: Path) -> None:
    """FC-045: the reason, the last memory sample and the log are kept."""
    outcome, log = supervise("killed", tmp_path)
    assert outcome.returncode == -signal.SIGKILL
    failure = failure_of(outcome, {"timeout_s": 60, "memory_mib": None}, None, log.last_lines)
    assert failure.kind == "killed"
    assert failure.message.startswith("killed (signal 9), probably out of memory")
    assert failure.detail["last_memory_bytes"] > 1 << 20
    assert failure.log_tail == ("about to need a lot",)


def test_more_memory_than_allowed_ends_the_whole_tree(tmp_path: Path) -> None:
    outcome, log = supervise("hungry", tmp_path, limits=Limits(timeout_s=60, memory_bytes=200 << 20))
    assert outcome.cause == "memory"
    assert outcome.peak_memory_bytes is not None
    assert outcome.peak_memory_bytes > 300 << 20
    failure = failure_of(outcome, {"timeout_s": 60, "memory_mib": 200}, None, log.last_lines)
    assert failure.kind == "out_of_memory"
    assert left_of(tmp_path) == []


def test_longer_than_allowed_is_a_timeout(tmp_path: Path) -> None:
    outcome, log = supervise("linger", tmp_path, limits=Limits(timeout_s=0.5))
    assert outcome.cause == "timeout"
    failure = failure_of(outcome, {"timeout_s": 1, "memory_mib": None}, None, log.last_lines)
    assert (failure.kind, failure.field) == ("timeout", "resources.timeout_s")
    assert left_of(tmp_path) == []


def test_an_end_without_report_is_internal_with_the_log(tmp_path: Path) -> None:
    outcome, log = supervise("crash", tmp_path)
    failure = failure_of(outcome, {"timeout_s": 60, "memory_mib": None}, None, log.last_lines)
    assert failure.kind == "internal"
    assert "exit code 7" in failure.message
    assert failure.log_tail == ("Traceback: something broke",)


def test_a_noisy_engine_leaves_a_small_safe_log(tmp_path: Path) -> None:
    """FC-047: long logs, carriage returns, colours and bad bytes."""
    hearer = Hearer()
    outcome, log = supervise("noisy", tmp_path, hearer)
    assert outcome.returncode == 7
    text = (tmp_path / "log").read_text()  # UTF-8 throughout
    assert len(text) < 9 << 20
    assert max(len(line) for line in text.splitlines()) < 9000
    assert "10000 of 10000" in text
    assert "9999 of 10000" not in text
    assert "red and \\xff\\xfe and <script>" in text
    assert "\x1b" not in text
    assert "4,991,808 more bytes" in text
    assert "not an event" in text
    assert [event.message for event in hearer.heard] == ["the last words"]
    assert "the last words" in log.last_lines


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_a_log_reads_the_same_however_it_is_cut(tmp_path: Path, piece: int) -> None:
    raw = b"a\r\nb\rc\n\r\rd\n" + "é\n".encode() + b"1%\r2%\r" + b"end"
    log = AttemptLog(tmp_path / "log")
    for start in range(0, len(raw), piece):
        log.feed(raw[start : start + piece])
    log.close()
    assert (tmp_path / "log").read_text() == "a\nc\nd\né\nend\n"


def test_a_full_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", file_limit=1000)
    for number in range(20_000):
        log.feed(b"line %d\n" % number)
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "line 0"
    assert lines[-1] == "line 19999"
    assert any("left out" in line for line in lines)
    assert (tmp_path / "log").stat().st_size < 70_000
