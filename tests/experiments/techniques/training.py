"""What tests of training techniques share: rows to learn from, and a context that hands them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.protocols import BuildContext, Examples, ModelFacts, Task, Use
from tests.experiments.building import context
from tests.experiments.tiny_models import tokenizer_of

WORDS = ["good", "bad", "fine", "poor", "film", "plot", "great", "awful"]
LABELS = ("neg", "pos")


def reviews(rows: int = 64) -> Examples:
    """Texts of four words whose first word decides the label."""
    rng = np.random.default_rng(0)
    picked = rng.integers(0, len(WORDS), (rows, 4))
    return Examples(
        name="reviews",
        sha256="0",
        texts=tuple(" ".join(WORDS[i] for i in row) for row in picked),
        labels=tuple(LABELS[int(row[0]) % 2] for row in picked),
    )


def prose(words: int = 1200) -> Examples:
    """One text in which each word tells the next."""
    return Examples(name="prose", sha256="1", texts=(" ".join(WORDS[i * 3 % 8] for i in range(words)),))


def digits(rows: int = 64) -> Examples:
    """Grey images whose brighter half tells the class."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 4, (rows, 8, 8)).astype(np.uint8)
    labels = rng.integers(0, 2, rows)
    images[labels == 1, :4] += 10
    return Examples(name="digits", sha256="2", images=images, labels=tuple(str(i) for i in labels))


def training(work: Path, task: Task, rows: Examples | None = None, **changes: Any) -> BuildContext:
    """A context with a tokenizer for ``WORDS`` and training rows that suit ``task``."""
    given = rows or {"text-generation": prose, "image-classification": digits}.get(task, reviews)()
    names = tuple(str(i) for i in range(10)) if task == "image-classification" else LABELS

    def hand_out(use: Use, limit: int | None = None) -> Examples:
        return given

    facts = ModelFacts("tiny", "tiny", (), task, 0, "float32", 0, max_length=64, labels=names)
    made = context(work, task, **{"facts": facts, "rows": hand_out, **changes})
    if task == "image-classification":
        processor = '{"do_resize": false, "do_rescale": true, "rescale_factor": 0.0625, "do_normalize": false}'
        (made.source / "config.json").write_text('{"num_channels": 1, "image_size": 8}')
        (made.source / "preprocessor_config.json").write_text(processor)
    else:
        tokenizer_of(made.source, WORDS, special=task != "text-generation")
    return made
