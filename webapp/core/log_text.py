"""A log as people can read it: no escape sequences, progress bars as their last state, long lines cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

MAX_LINE = 2_000


def clean_line(line: str) -> str:
    """One line: what a terminal would show of it at the end, cut to :data:`MAX_LINE` characters."""
    line = line.rstrip("\r")
    line = line.rsplit("\r", 1)[-1]
    line = _CONTROL.sub("\ufffd", _ANSI.sub("", line))
    if len(line) > MAX_LINE:
        line = f"{line[:MAX_LINE]} \u2026 {len(line) - MAX_LINE:,} more characters: download the log to see them"
    return line


def clean(text: str) -> str:
    """Many lines, each cleaned."""
    return "\n".join(clean_line(line) for line in text.split("\n"))


@dataclass(frozen=True)
class Hit:
    """A line that holds what was searched for; ``number`` counts from 1."""

    number: int
    text: str


def search(read: Callable[[int, int], tuple[str, int]], wanted: str, limit: int = 200) -> tuple[list[Hit], bool]:
    """The first ``limit`` lines that hold ``wanted`` (any case), and whether there are more.

    Args:
        read: ``(offset, bytes) -> (text, next offset)``; the next offset equals the offset at the end.
        wanted: text to find.
        limit: lines to return.
    """
    hits: list[Hit] = []
    needle = wanted.casefold()
    for number, line in enumerate(_lines(read), start=1):
        if needle in line.casefold():
            if len(hits) == limit:
                return hits, True
            hits.append(Hit(number, clean_line(line)))
    return hits, False


def _lines(read: Callable[[int, int], tuple[str, int]]) -> Iterator[str]:
    offset, rest = 0, ""
    while True:
        text, following = read(offset, 1 << 20)
        if following == offset or not text:
            break
        offset = following
        *whole, rest = (rest + text).split("\n")
        yield from whole
    if rest:
        yield rest
