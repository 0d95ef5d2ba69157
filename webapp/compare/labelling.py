"""Where the names of points go, so that they cover neither each other nor the points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Size of one character and of a line, and the distance from a point, as shares of a chart 640 px wide, 250 px high.
CHARACTER, LINE = 7.0 / 640, 17.0 / 250
GAP_X, GAP_Y = 9.0 / 640, 9.0 / 250

#: Plotly's text positions in the order in which they are tried: (name, side, height).
POSITIONS = (
    ("top right", 1, 1),
    ("bottom right", 1, -1),
    ("top left", -1, 1),
    ("bottom left", -1, -1),
    ("middle right", 1, 0),
    ("middle left", -1, 0),
    ("top center", 0, 1),
    ("bottom center", 0, -1),
)


@dataclass(frozen=True)
class Box:
    """A rectangle on a chart whose sides run from 0 to 1."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Shared area."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return width * height if width > 0 and height > 0 else 0.0

    @property
    def outside(self) -> float:
        """How far it sticks out to the left or right."""
        return max(0.0, -self.left) + max(0.0, self.right - 1)


def places(points: Sequence[tuple[float, float]], texts: Sequence[str]) -> list[str]:
    """For each text the position beside its point; an empty text takes no room.

    Greedy, in the order given: each name takes the position that covers least of what is there already.
    """
    taken = [Box(x - GAP_X, y - GAP_Y, x + GAP_X, y + GAP_Y) for x, y in points]
    chosen = []
    for (x, y), text in zip(points, texts, strict=True):
        if not text:
            chosen.append(POSITIONS[0][0])
            continue
        boxes = [(name, _box(x, y, len(text), side, height)) for name, side, height in POSITIONS]
        name, box = min(boxes, key=lambda item: sum(item[1].overlap(other) for other in taken) + item[1].outside)
        chosen.append(name)
        taken.append(box)
    return chosen


def _box(x: float, y: float, length: int, side: int, height: int) -> Box:
    width = length * CHARACTER
    left = x + GAP_X / 2 if side > 0 else x - GAP_X / 2 - width if side < 0 else x - width / 2
    if side and not height:
        left += side * GAP_X / 2
    bottom = y + GAP_Y / 2 if height > 0 else y - GAP_Y / 2 - LINE if height < 0 else y - LINE / 2
    return Box(left, bottom, left + width, bottom + LINE)
