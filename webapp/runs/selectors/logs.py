"""Reads of logs, by bytes, never more than was asked for."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from webapp.runs.models import Attempt, Experiment

SLICE = 64 * 1024


def log_path(attempt: Attempt) -> Path | None:
    """Where the attempt's log lies, or None if it has none."""
    if not attempt.log:
        return None
    root = Path(settings.LOG_ROOT).resolve()
    path = (root / attempt.log).resolve()
    return path if path.is_relative_to(root) and path.is_file() else None


def log_slice(
    experiment: Experiment, offset: int = 0, limit: int = SLICE, *, number: int | None = None
) -> tuple[str, int]:
    """At most ``limit`` bytes of the log from byte ``offset``, and the offset to ask for next.

    Args:
        experiment: whose log.
        offset: bytes to skip; a negative one counts from the end.
        limit: bytes to read.
        number: of which attempt; default: the newest.
    """
    path = _path(experiment, number)
    if path is None:
        return "", 0
    size = path.stat().st_size
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    with path.open("rb") as file:
        file.seek(start)
        piece = file.read(max(1, min(limit, 1 << 20)))
    if start + len(piece) < size or offset < 0:
        piece = _whole_lines(piece, from_middle=offset < 0 and start > 0)[0 if offset >= 0 else 1] or piece
    if offset < 0:
        return piece.decode(errors="replace"), size
    return piece.decode(errors="replace"), start + len(piece)


def log_tail(experiment: Experiment, limit: int = SLICE, *, number: int | None = None) -> tuple[str, int]:
    """The end of the log, from a line's beginning, and its size."""
    return log_slice(experiment, -limit, limit, number=number)


def _path(experiment: Experiment, number: int | None) -> Path | None:
    rows = experiment.attempts.exclude(log="").order_by("-number")
    attempt = rows.filter(number=number).first() if number is not None else rows.first()
    return log_path(attempt) if attempt else None


def _whole_lines(piece: bytes, *, from_middle: bool) -> tuple[bytes, bytes]:
    """``piece`` without its last broken line, and ``piece`` without its first broken line."""
    end = piece.rfind(b"\n") + 1
    begin = piece.find(b"\n") + 1 if from_middle else 0
    return piece[:end], piece[begin:]
