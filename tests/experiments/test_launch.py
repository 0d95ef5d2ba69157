"""Children are fresh, answer one command at a time, and every way they can end is a typed failure."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from experiments.launch import Child, Events, Limits, to_descriptor, tree_rss
from experiments.records import Event, ExperimentError, FailureKind


@pytest.fixture
def events() -> Events:
    seen: list[Event] = []
    stream = Events(seen.append)
    stream.seen = seen  # type: ignore[attr-defined]
    return stream


@pytest.fixture
def child(events: Events) -> Iterator[Child]:
    with Child("measure", events, Limits(60, None)) as started:
        yield started


def refused(child: Child, operation: str, **arguments: object) -> ExperimentError:
    with pytest.raises(ExperimentError) as caught:
        child.call(operation, **arguments)
    return caught.value


def test_a_childs_own_failure_keeps_its_kind(child: Child, tmp_path: Path) -> None:
    error = refused(
        child,
        "open",
        folder=str(tmp_path),
        runtime={"kind": "torch-eager"},
        device="cpu",
        threads=1,
        pack=str(tmp_path),
        task="text-classification",
        new_tokens=2,
    )
    assert error.failure.kind is FailureKind.BAD_MODEL


def test_an_unforeseen_exception_is_internal_with_the_logs_last_lines(child: Child) -> None:
    error = refused(child, "no such operation")
    assert error.failure.kind is FailureKind.INTERNAL
    assert "KeyError" in error.failure.message


def test_a_child_killed_by_signal_9_is_said_to_be_probably_out_of_memory(child: Child) -> None:
    """FC-045: killed, not an unexplained exit."""
    os.kill(child.pid, signal.SIGKILL)
    error = refused(child, "memory")
    assert error.failure.kind is FailureKind.KILLED
    assert "signal 9" in error.failure.message
    assert "probably out of memory" in error.failure.message


def test_a_passed_deadline_ends_the_wait_as_timeout(events: Events) -> None:
    child = Child("measure", events, Limits(0.5, None))
    try:
        os.kill(child.pid, signal.SIGSTOP)
        assert refused(child, "memory").failure.kind is FailureKind.TIMEOUT
    finally:
        child.close(grace=0)
    assert not psutil.pid_exists(child.pid)


def test_more_memory_than_the_limit_is_out_of_memory_with_the_peak(events: Events) -> None:
    limits = Limits(60, 1)
    with pytest.raises(ExperimentError) as caught:
        limits.check()
    assert caught.value.failure.kind is FailureKind.OUT_OF_MEMORY
    assert caught.value.failure.detail["peak_bytes"] > 2**20


def test_memory_of_a_tree_counts_children() -> None:
    alone = tree_rss(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert tree_rss(os.getpid()) > alone
        child.kill()


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os
        from experiments.launch import Child, Events, Limits
        child = Child("measure", Events(lambda event: None), Limits(60, None))
        try:
            child.call("no such operation")
        except Exception:
            print(child.pid, flush=True)
        os._exit(1)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    pid = int(done.stdout)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=10)
    assert not psutil.pid_exists(pid)


def test_progress_within_a_stage_is_a_share_of_the_whole(events: Events) -> None:
    with events.stage("load", 0.2):
        events.progress(0.5)
    with events.stage("build", 0.6):
        events.progress(0.5, seconds_left=3.0)
    seen: list[Event] = events.seen  # type: ignore[attr-defined]
    assert [event.fraction for event in seen] == pytest.approx([0, 0.1, 0.2, 0.2, 0.5, 0.8])
    assert [event.seq for event in seen] == list(range(1, 7))
    assert set(events.stage_seconds) == {"load", "build"}


def test_an_event_is_one_json_line_of_at_most_64_kib() -> None:
    read, write = os.pipe()
    events = Events(to_descriptor(write))
    events.emit("log", message="x" * 200_000)
    events.emit("log", message="a\nb")
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        lines = stream.read().splitlines()
    assert len(lines) == 2
    assert all(len(line) < 64 * 1024 for line in lines)
    assert json.loads(lines[1])["message"] == "a\nb"
