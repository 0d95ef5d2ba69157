"""Handwritten digits, 8 x 8 pixels of 17 grey levels (Alpaydin and Kaynak, 1998), as scikit-learn ships them."""

from __future__ import annotations

import importlib.util
import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.parts.examples import make_examples
from experiments.protocols import Examples
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy.typing as npt

LABELS = tuple("0123456789")
LEVELS = 16  # the largest pixel value
TRAIN, VALIDATION = 1_257, 180  # rows; the remaining 360 are the test split
SPLITS = ("train", "validation", "test")


def digits(split: str) -> Examples:
    """One split of the 1,797 images, shuffled with a fixed seed: train 1,257, validation 180, test 360.

    ``images`` is uint8 (N, 8, 8) with values 0..16. No image lies in two splits.
    """
    pixels, targets = _file()
    order = list(range(len(pixels)))
    random.Random(19980701).shuffle(order)
    start, end = {
        "train": (0, TRAIN),
        "validation": (TRAIN, TRAIN + VALIDATION),
        "test": (TRAIN + VALIDATION, len(order)),
    }[split]
    part = order[start:end]
    return make_examples(
        f"digits/{split}",
        images=pixels[part],
        labels=[LABELS[targets[i]] for i in part],
        total=len(part),
        notes=("8 x 8 images with 17 grey levels, shuffled with a fixed seed",),
    )


@cache
def _file() -> tuple[npt.NDArray[np.uint8], tuple[int, ...]]:
    """(images, classes) of the file inside scikit-learn, read without importing it: that alone takes 100 MiB."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise ExperimentError(
            FailureKind.BAD_DATASET, "the digits come with scikit-learn, which is not installed", field="dataset"
        )
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    return table[:, :-1].reshape(-1, 8, 8).copy(), tuple(int(value) for value in table[:, -1])
