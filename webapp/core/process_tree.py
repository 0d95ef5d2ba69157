"""Whole process trees: adopt orphans, weigh, end to the last descendant."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PAGE = os.sysconf("SC_PAGE_SIZE")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (Linux), so that none can slip away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Receive signal ``number`` when the parent process dies (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, number)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All living descendants of ``pid`` (default: of this process), zombies left out."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if _alive(process)]


def memory_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants; pages that they share are counted once.

    Private pages of all, and the largest shared part: cheap to read (one small file each), unlike the exact
    proportional size, for which the kernel would walk the page tables of the process being timed.
    """
    private = shared = 0
    try:
        tree = [pid, *(p.pid for p in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0
    for each in tree:
        try:
            with open(f"/proc/{each}/statm", "rb") as file:
                _, resident, common = file.read().split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        private += int(resident) - int(common)
        shared = max(shared, int(common))
    return (private + shared) * _PAGE


def kill(processes: Iterable[psutil.Process], *, patience_s: float = 2.0) -> list[psutil.Process]:
    """SIGKILL each and wait for its end; returns those that are still there (in the kernel's hands)."""
    victims = list(processes)
    for process in victims:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.kill()
    _, left = psutil.wait_procs(victims, timeout=patience_s)
    return [process for process in left if _alive(process)]


def kill_descendants(*, patience_s: float = 2.0) -> None:
    """End every descendant of this process, those too that are born meanwhile, and collect all zombies."""
    deadline = time.monotonic() + patience_s
    while (left := descendants()) and time.monotonic() < deadline:
        kill(left, patience_s=max(0.05, deadline - time.monotonic()))
    collect_zombies()


def kill_marked(mark: Mapping[str, str]) -> int:
    """End every process of this user whose environment holds ``mark``, this process left out; returns how many."""
    victims = marked(mark)
    kill(victims)
    return len(victims)


def marked(mark: Mapping[str, str]) -> list[psutil.Process]:
    """Processes of this user whose environment holds ``mark``, this process left out."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.uids().real == os.getuid() and mark.items() <= process.environ().items():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, ProcessLookupError):
            continue
    return found


def collect_zombies(*, keep: Collection[int] = ()) -> None:
    """Wait for every child that has ended, but for those whose end someone else waits for."""
    for child in psutil.Process().children():
        with suppress(ChildProcessError, psutil.NoSuchProcess):
            if child.pid not in keep and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _LIBC.prctl(option, value, 0, 0, 0)


_LIBC = ctypes.CDLL(None, use_errno=True)
