"""Numbers, times and names as people read them: three significant digits, units beside them, names told apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiments.numbers import significant

MINUS = "\u2212"
TIMES = "\u00d7"

NAME_WIDTH = 44


class Scale(NamedTuple):
    """How a stored unit is shown: ``shown = stored * factor``."""

    unit: str
    factor: float


#: Stored unit -> shown unit. Bytes are MiB for memory and MB for files; shares are percentages, scores are not.
_SCALES = {
    "bytes": Scale("MB", 1e-6),
    "ns": Scale("ms", 1e-6),
    "share": Scale("%", 100.0),
    "x": Scale(TIMES, 1.0),
    "USD": Scale("$", 1.0),
    "parameters": Scale("M", 1e-6),
}


def scale(unit: str, group: str = "") -> Scale:
    """The unit in which a stored value is shown."""
    if unit == "bytes" and group == "memory":
        return Scale("MiB", 1 / 2**20)
    if unit == "share" and group == "quality":
        return Scale("", 1.0)  # scores are read as 0.796
    return _SCALES.get(unit, Scale(unit, 1.0))


def number(value: float | None, digits: int = 3) -> str:
    """A number with ``digits`` significant digits: ``1.82``, ``104``, ``1,140``, ``0.0042``, ``3.1e-9``.

    Whole digits are never rounded away (``1,143`` stays), since a reader would take the zeros for measured.
    """
    return signless(significant(value, digits).replace("e-0", "e-"))


def score(value: float | None) -> str:
    """A score between 0 and 1 with three decimals, as papers print it."""
    return "undefined" if value is None or not math.isfinite(value) else signless(f"{value:.3f}")


def signless(text: str) -> str:
    """The same text with a typographic minus, and without one before zero."""
    if text.startswith("-"):
        return text[1:] if not text.strip("-0.,") else MINUS + text[1:]
    return text


def signed(value: float, digits: int = 3, decimals: int | None = None) -> str:
    """A difference with its sign: ``+0.8``, ``−1.6``, ``0``."""
    text = number(value, digits) if decimals is None else signless(f"{value:.{decimals}f}")
    if not text.strip("0.,"):
        return text
    return text if text.startswith(MINUS) else f"+{text}"


def ratio(value: float) -> str:
    """A factor: ``1.82×``."""
    return f"{number(value)}{TIMES}"


def bracket(low: float, high: float) -> str:
    """An interval with as many decimals as tell its ends apart: ``[1.77, 1.88]``."""
    return f"[{number(low)}, {number(high)}]"


def duration(seconds: float | None) -> str:
    """``38 s``, ``4 min 12 s``, ``1 h 05 min``."""
    if seconds is None:
        return "unknown"
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(count: float | None) -> str:
    """Bytes as ``512 B``, ``22.9 MB``."""
    if count is None:
        return "unknown"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{number(count / factor)} {unit}"
    return f"{round(count)} B"


def count(value: int) -> str:
    """Large counts as ``22.7 M``, ``1.5 B``; small ones whole."""
    for unit, factor in (("B", 1e9), ("M", 1e6)):
        if value >= factor:
            return f"{number(value / factor)} {unit}"
    return f"{value:,}"


def sentence_list(words: Sequence[str], limit: int = 6) -> str:
    """``a``, ``a and b``, ``a, b and c``; long lists end with a count."""
    words = list(words)
    if len(words) > limit:
        words = [*words[: limit - 1], f"{len(words) - limit + 1} more"]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def labels(names: Iterable[str], width: int = NAME_WIDTH) -> dict[str, str]:
    """A short label for each name, different wherever the names differ.

    A name of at most ``width`` characters is its own label. Longer ones keep their beginning and, after an
    ellipsis, the part from where they start to differ from the others; if that still does not tell them apart or
    does not fit, the whole name is its label.
    """
    unique = list(dict.fromkeys(names))
    long = [name for name in unique if len(name) > width]
    made = {name: name for name in unique if len(name) <= width}
    if not long:
        return made
    head = width // 3
    shared = _shared_beginning(long)
    for name in long:
        start = max(head, min(shared, len(name) - (width - head - 1)))
        tail = name[start:]
        if len(tail) > width - head - 1:
            keep = width - head - 1
            tail = f"{tail[: keep // 2]}\u2026{tail[-(keep - keep // 2 - 1) :]}"
        made[name] = f"{name[:head].rstrip()}\u2026{tail}"
    times: dict[str, int] = {}
    for label in made.values():
        times[label] = times.get(label, 0) + 1
    return {name: label if times[label] == 1 else name for name, label in ((n, made[n]) for n in unique)}


def _shared_beginning(names: Sequence[str]) -> int:
    """How many characters all names have in common from the start; 0 for a single name."""
    if len(names) < 2:
        return 0
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, zip(*names, strict=False)))
