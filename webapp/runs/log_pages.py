"""A log in pieces that a page can hold: from its end backwards, by whole lines, each line cleaned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from webapp.core.log_text import clean_line

#: Bytes that are read for one piece at most; progress bars make many bytes and few characters.
READ = 1 << 19
#: Characters of one piece at most, as shown.
SHOWN = 64_000


@dataclass(frozen=True)
class Piece:
    """Cleaned lines; ``begin`` and ``end`` are their place in the file, in bytes."""

    text: str
    begin: int
    end: int


def piece(path: Path | None, before: int | None = None) -> Piece:
    """The lines that end at byte ``before`` (default: at the end of the file), as many as a page can hold.

    Pieces that follow each other (``before`` = the last piece's ``begin``) neither lose nor repeat a line; a line
    that is longer than what is read at once is cut where the reading begins.
    """
    if path is None:
        return Piece("", 0, 0)
    size = path.stat().st_size
    end = size if before is None else max(0, min(before, size))
    start = max(0, end - READ)
    with path.open("rb") as file:
        file.seek(start)
        raw = file.read(end - start)
    lines = _split(raw)
    if start and len(lines) > 1:
        lines = lines[1:]  # its beginning was not read
    kept: list[str] = []
    begin, shown = end, 0
    for line in reversed(lines):
        text = clean_line(line.rstrip(b"\n").decode("utf-8", errors="replace"))
        if kept and shown + len(text) > SHOWN:
            break
        kept.append(text + ("\n" if line.endswith(b"\n") else ""))
        begin -= len(line)
        shown += len(text) + 1
    return Piece("".join(reversed(kept)), begin, end)


def _split(raw: bytes) -> list[bytes]:
    """Lines with their ends; only a line feed ends a line, since a carriage return rewrites it."""
    parts = raw.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines
