"""The Pareto frontier of any two metrics, by their directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """One axis: the metric and whether more of it is better."""

    metric: str
    higher_is_better: bool


def frontier(points: Mapping[str, tuple[float, float]], x: Axis, y: Axis) -> list[str]:
    """Names of the points that no other point beats on both axes, from the best x to the best y.

    A point is beaten if another is at least as good on both axes and better on one. Equal points are all kept.
    """
    good = {
        name: (px if x.higher_is_better else -px, py if y.higher_is_better else -py)
        for name, (px, py) in points.items()
    }
    kept: list[str] = []
    best_y = float("-inf")
    best_x_at_that_y = float("-inf")
    for name in sorted(good, key=lambda n: (-good[n][0], -good[n][1])):
        gx, gy = good[name]
        if gy > best_y or (gy == best_y and gx == best_x_at_that_y):
            kept.append(name)
            best_y, best_x_at_that_y = gy, gx
    return kept
