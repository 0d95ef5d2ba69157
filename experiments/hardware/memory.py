"""Memory that this process may use."""

from __future__ import annotations

from pathlib import Path

from experiments.hardware.cgroups import limit_files, read_number


def memory_bytes(root: Path = Path("/")) -> int:
    """Bytes of physical memory, or the control groups' limit where that is less."""
    import psutil

    limits = [int(psutil.virtual_memory().total)]
    for folder in limit_files("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = read_number(folder / name)
            if limit is not None and limit > 0:
                limits.append(limit)
    return min(limits)
