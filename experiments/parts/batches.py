"""Seeded batches of tokenized texts, of like lengths together so that little padding is computed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


def batches_by_length(lengths: Sequence[int], size: int, seed: int, window: int = 16) -> Iterator[list[int]]:
    """Endless batches of row indices: each epoch is shuffled, then sorted by length within ``window`` batches.

    Only whole batches are given; what is left of an epoch (fewer than ``size`` rows) is left out of that epoch.
    """
    if len(lengths) < size:
        raise ValueError(f"{len(lengths)} rows are fewer than one batch of {size}")
    chance = random.Random(seed)
    order = list(range(len(lengths)))
    while True:
        chance.shuffle(order)
        batches: list[list[int]] = []
        for start in range(0, len(order), size * window):
            near = sorted(order[start : start + size * window], key=lambda row: lengths[row])
            batches += [near[i : i + size] for i in range(0, len(near) - size + 1, size)]
        chance.shuffle(batches)
        yield from batches
