"""A tiny classifier and its data, written to a folder: ``python -m tests.browser.tiny_model FOLDER``.

Small enough that a whole study of it ends within seconds; real enough for every stage of the engine.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.experiments.tiny_models import tiny_classifier

GOOD = ("fine", "great", "lovely", "bright", "warm")
BAD = ("poor", "dull", "grim", "cold", "flat")


def write(folder: Path) -> None:
    """``folder/model`` and ``folder/reviews.csv``."""
    draw = random.Random(0)
    tiny_classifier(folder / "model", [*GOOD, *BAD], ["bad", "good"])
    rows = ["text,label"]
    for number in range(120):
        words = GOOD if number % 2 else BAD
        rows.append(
            f"{' '.join(draw.choice(words) for _ in range(6 + number % 5))} {number},{'good' if number % 2 else 'bad'}"
        )
    (folder / "reviews.csv").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
