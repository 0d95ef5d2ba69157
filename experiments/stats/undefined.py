"""Undefined is a value: it carries its reason and is never NaN, 0 or None."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Undefined:
    """A number that does not exist, with the reason in words for a person."""

    reason: str


class Insufficient(Undefined):
    """A percentile that needs more samples than there are.

    Attributes:
        n: samples there are.
        needed: samples the percentile needs (:func:`experiments.stats.percentile_needs`).
    """

    def __init__(self, n: int, needed: int) -> None:
        super().__init__(f"insufficient ({n:,} of {needed:,})")
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "needed", needed)

    n: int
    needed: int
