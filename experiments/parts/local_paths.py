"""Where ``source: path`` may point: below the allowed folders only, whatever links and dots a path is made of."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from experiments.protocols import Host
from experiments.records import ExperimentError, FailureKind


def allowed_path(given: str, host: Host, kind: FailureKind, field: str) -> Path:
    """The real path of ``given``: it exists and, if the host has path roots, lies below one of them.

    Links are followed before the check, so neither ``..`` nor a link leads out. Relative paths start at the first
    root, else at the current folder; ``~`` is the user's home.

    Raises:
        ExperimentError: of ``kind``; paths outside the roots are refused without saying whether they exist.
    """
    if "\0" in given:
        raise ExperimentError(kind, "a path can't hold a NUL character", fix="Remove it.", field=field)
    written = Path(os.path.expanduser(given))
    base = host.path_roots[0] if host.path_roots else Path.cwd()
    try:
        real = (base / written).resolve()
    except (OSError, RuntimeError) as error:
        raise ExperimentError(kind, f"the path {given!r} can't be followed: {error}", field=field) from error
    if host.path_roots is not None and not any(_below(real, root) for root in host.path_roots):
        raise ExperimentError(
            kind,
            f"the path {given!r} is outside the folders that this server allows",
            fix="Upload it instead, or ask an administrator to add its folder to STEELYARD_PATH_ROOTS.",
            field=field,
        )
    try:
        mode = real.stat().st_mode
    except OSError as error:
        gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        why = f"there is nothing at {given!r}" if gone else f"{given[:200]!r} can't be reached: {error.strerror}"
        raise ExperimentError(kind, why, fix="Check the path.", field=field) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or not os.access(real, os.R_OK):
        raise ExperimentError(
            kind, f"{given!r} is not a file or folder that can be read", fix="Check its permissions.", field=field
        )
    return real


def check_inside(folder: Path, host: Host, kind: FailureKind, field: str) -> None:
    """Refuse a folder whose entries lead out of the allowed folders through links (all levels).

    Without path roots everything is allowed, as is usual for a hub's cache of links.
    """
    if host.path_roots is None:
        return
    for entry in folder.rglob("*"):
        if entry.is_symlink() and not any(_below(entry.resolve(), root) for root in host.path_roots):
            raise ExperimentError(
                kind,
                f"{entry.relative_to(folder)} is a link that leads out of the folders that this server allows",
                fix="Replace the link by the file itself.",
                field=field,
            )


def _below(path: Path, root: Path) -> bool:
    return path.is_relative_to(root.resolve())
