"""Handwritten digits, 8 x 8 pixels of 17 grey levels (Alpaydin and Kaynak, 1998), as scikit-learn ships them."""

from __future__ import annotations

import random

from experiments.parts.examples import make_examples
from experiments.protocols import Examples

LABELS = tuple("0123456789")
LEVELS = 16  # the largest pixel value
TRAIN, VALIDATION = 1_257, 180  # rows; the remaining 360 are the test split
SPLITS = ("train", "validation", "test")


def digits(split: str) -> Examples:
    """One split of the 1,797 images, shuffled with a fixed seed: train 1,257, validation 180, test 360.

    ``images`` is uint8 (N, 8, 8) with values 0..16. No image lies in two splits.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = list(range(len(bunch.images)))
    random.Random(19980701).shuffle(order)
    start, end = {
        "train": (0, TRAIN),
        "validation": (TRAIN, TRAIN + VALIDATION),
        "test": (TRAIN + VALIDATION, len(order)),
    }[split]
    part = order[start:end]
    return make_examples(
        f"digits/{split}",
        images=np.ascontiguousarray(bunch.images[part].astype(np.uint8)),
        labels=[LABELS[int(bunch.target[i])] for i in part],
        total=len(part),
        notes=("8 x 8 images with 17 grey levels, shuffled with a fixed seed",),
    )
