"""The log file of an attempt: safe to show whatever a program prints, and never larger than its limit."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

LINE_LIMIT = 8 * 1024
FILE_LIMIT = 8 * 1024 * 1024
TAIL_LIMIT = 64 * 1024

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_CONTROL = dict.fromkeys((*range(9), *range(10, 32), 127, *range(128, 160)), "\N{REPLACEMENT CHARACTER}")


class AttemptLog:
    r"""Turns the raw output of a process tree into lines of clean UTF-8.

    A line that redraws itself with carriage returns keeps its last state. Colours and control characters are taken
    out, bytes that are not UTF-8 are shown as ``\xff``. A line longer than :data:`LINE_LIMIT` is cut with a note.
    After :data:`FILE_LIMIT` bytes only the end is kept and written, after a note on what was left out, when the log
    is closed.
    """

    def __init__(self, path: Path, *, file_limit: int = FILE_LIMIT) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._room = file_limit - path.stat().st_size
        self._line = bytearray()
        self._cut = 0
        self._redraw = False
        self._full = False
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._left_out = 0
        self._left_out_bytes = 0
        self._last: deque[str] = deque(maxlen=20)

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The newest lines, for a failure's ``log_tail``."""
        pending = [_clean(bytes(self._line))] if self._line else []
        return (*self._last, *pending)[-20:]

    def feed(self, data: bytes) -> None:
        """Raw output, cut anywhere."""
        out: list[bytes] = []
        first, *others = data.split(b"\n")
        self._add(first)
        for piece in others:
            self._end_line(out)
            self._add(piece)
        self._write(out)

    def line(self, text: str) -> None:
        """One line of our own."""
        out: list[bytes] = []
        if self._line:
            self._end_line(out)
        self._add(text.encode("utf-8", "backslashreplace").replace(b"\n", b" "))
        self._end_line(out)
        self._write(out)

    def close(self) -> None:
        """Write what is pending and, after a full log, its end."""
        out: list[bytes] = []
        if self._line:
            self._end_line(out)
        self._write(out)
        if self._full:
            shown = sum(len(line) for line in self._tail)
            lines, size = self._left_out - len(self._tail), self._left_out_bytes - shown
            if lines > 0:
                self._file.write(f"[{lines:,} lines ({size:,} bytes) left out]\n".encode())
            self._file.write(b"".join(self._tail))
        self._file.close()

    def _add(self, piece: bytes) -> None:
        first, *redrawn = piece.split(b"\r")
        self._append(first)
        for state in redrawn:
            # A carriage return before a line feed ends the line; before anything else it begins it anew.
            self._redraw = True
            self._append(state)

    def _append(self, state: bytes) -> None:
        if not state:
            return
        if self._redraw:
            self._line.clear()
            self._cut = 0
            self._redraw = False
        room = max(0, LINE_LIMIT - len(self._line))
        self._line += state[:room]
        self._cut += max(0, len(state) - room)

    def _end_line(self, out: list[bytes]) -> None:
        text = _clean(bytes(self._line))
        if self._cut:
            text += f" ... ({self._cut:,} more bytes)"
        self._last.append(text)
        out.append(text.encode() + b"\n")
        self._line.clear()
        self._cut = 0
        self._redraw = False

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if not self._full:
            kept = []
            for index, line in enumerate(lines):
                if len(line) > self._room:
                    self._full = True
                    kept.append(b"[the log is full; its end is added when the attempt ends]\n")
                    lines = lines[index:]
                    break
                self._room -= len(line)
                kept.append(line)
            self._file.write(b"".join(kept))
            if not self._full:
                return
        for line in lines:
            self._tail.append(line)
            self._tail_bytes += len(line)
            self._left_out += 1
            self._left_out_bytes += len(line)
            while self._tail_bytes > TAIL_LIMIT and len(self._tail) > 1:
                self._tail_bytes -= len(self._tail.popleft())


def _clean(raw: bytes) -> str:
    return _ANSI.sub("", raw.decode("utf-8", "backslashreplace")).translate(_CONTROL)
