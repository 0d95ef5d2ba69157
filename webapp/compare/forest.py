"""The small forest plot beside a ratio: where its interval lies on a logarithmic axis around 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from experiments.records import Interval

WIDTH = 152.0
MARGIN = 6.0


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis that is symmetric around 1; ``reach`` is the largest factor shown."""

    reach: float

    def x(self, ratio: float) -> float:
        """Horizontal position of ``ratio``; what lies beyond the axis is drawn at its end."""
        share = math.log(ratio) / math.log(self.reach) if ratio > 0 else -1.0
        return round(WIDTH / 2 + max(-1.0, min(1.0, share)) * (WIDTH / 2 - MARGIN), 1)


@dataclass(frozen=True)
class Forest:
    """Geometry of one row, in the view box ``0 0 152 26``."""

    dot: float
    low: float
    high: float
    one: float = WIDTH / 2
    floor_x: float | None = None
    floor_width: float | None = None


def axis(ratios: Iterable[float]) -> Axis:
    """The smallest axis that shows all ratios, at least from 0.8 to 1.25."""
    reach = max([1.25, *(max(r, 1 / r) for r in ratios if r > 0)])
    return Axis(reach=reach * 1.05)


def forest(on: Axis, value: float, interval: Interval | None, floor: Interval | None) -> Forest:
    """One row's dot and interval, and the noise floor behind it."""
    low, high = (interval.low, interval.high) if interval else (value, value)
    row = Forest(dot=on.x(value), low=on.x(low), high=on.x(high))
    if floor is None:
        return row
    start = on.x(floor.low)
    return Forest(row.dot, row.low, row.high, row.one, start, round(max(1.0, on.x(floor.high) - start), 1))
