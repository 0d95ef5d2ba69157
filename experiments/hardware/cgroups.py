"""Limits that a container or a service manager put on this process (Linux control groups, versions 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def limit_files(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Folders of this process's control groups for ``controller`` ('cpu', 'memory'), innermost first.

    Every ancestor limits too, so callers take the least. Yields nothing where there are no control groups.

    Args:
        root: where ``proc`` and the mounts lie.
    """
    mounts = list(_mounts(root))
    for line in _lines(root / "proc/self/cgroup"):
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, path = parts
        version2 = controllers == ""
        if not version2 and controller not in controllers.split(","):
            continue
        for mount_root, mount_point, kind, options in mounts:
            if (kind == "cgroup2") != version2 or (kind == "cgroup" and controller not in options):
                continue
            top = root / mount_point.lstrip("/")
            inside = Path(path).relative_to(mount_root) if Path(path).is_relative_to(mount_root) else Path()
            folder = top / inside
            while True:
                if folder.is_dir():
                    yield folder
                if folder == top:
                    break
                folder = folder.parent


def _mounts(root: Path) -> Iterator[tuple[str, str, str, frozenset[str]]]:
    """(root inside the file system, mount point, file system, its options) of the control group mounts."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, separator, after = line.partition(" - ")
        fields, system = before.split(), after.split()
        if separator and len(fields) >= 5 and system and system[0] in {"cgroup", "cgroup2"}:
            yield fields[3], fields[4], system[0], frozenset(system[-1].split(","))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # no such file: not Linux, or no control groups
        return []


def read_number(path: Path) -> int | None:
    """The integer in ``path``; None if it is absent or says 'max'."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().lstrip("-").isdigit() else None


def read_pair(path: Path) -> tuple[int, int] | None:
    """The two integers in ``path`` ('200000 100000'); None if it is absent or the first says 'max'."""
    lines = _lines(path)
    words = lines[0].split() if lines else []
    return (int(words[0]), int(words[1])) if len(words) == 2 and all(w.isdigit() for w in words) else None
