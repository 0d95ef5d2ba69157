"""The cores this process may use, hence its number of threads."""

from __future__ import annotations

import os
from pathlib import Path

from experiments.hardware.cgroups import limit_files, read_number, read_pair


def allowed_cores(root: Path = Path("/")) -> tuple[int, ...]:
    """Core numbers that this process may keep busy, ascending; threads = their count.

    These are the cores of its affinity mask, but no more of them than its control group's CPU quota pays for, rounded
    down (at least one): with a quota of 2.5 cores a third thread would be stopped half of the time, and one late
    thread makes all wait.
    """
    cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else _all_cores()
    quota = cpu_quota(root)
    return cores if quota is None else cores[: max(1, int(quota))]


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the control groups allow, or None if they set no limit."""
    quotas = []
    for folder in limit_files("cpu", root):
        if pair := read_pair(folder / "cpu.max"):  # version 2: quota and period
            quotas.append(pair[0] / pair[1])
        quota, period = read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:  # version 1: -1 is no limit
            quotas.append(quota / period)
    return min(quotas, default=None)


def _all_cores() -> tuple[int, ...]:
    return tuple(range(os.cpu_count() or 1))
