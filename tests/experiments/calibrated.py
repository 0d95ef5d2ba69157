"""A build context with calibration rows and the tokenizer of a tiny decoder or classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.parts.model_facts import facts_of_folder
from experiments.protocols import BuildContext, Examples, Task, Use
from tests.experiments.building import context
from tests.experiments.tiny_models import tiny_classifier, tiny_decoder

WORDS = [f"w{n}" for n in range(40)]
TEXTS = tuple(" ".join(WORDS[(n * k) % 40] for k in range(1, 3 + n)) for n in range(1, 24))


def rows(use: Use, limit: int | None = None) -> Examples:
    """Texts of 3 to 25 words."""
    assert use == "calibration"
    return Examples("tiny", "sha", texts=TEXTS[:limit], total=len(TEXTS))


def same_token(use: Use, limit: int | None = None) -> Examples:
    """Two rows, one token repeated (FC-017)."""
    return Examples("same", "sha", texts=(" ".join(["w1"] * 16),) * 2, total=2)


def calibrated(folder: Path, task: Task, **changes: Any) -> BuildContext:
    """The context; its ``source`` is a model that may be loaded, or stand for any other with as large a vocabulary."""
    source = folder / "tiny"
    if not source.exists():
        if task == "text-generation":
            tiny_decoder(source, WORDS)
        else:
            tiny_classifier(source, WORDS, ["a", "b"])
    return context(folder, task, **{"source": source, "facts": facts_of_folder(source), "rows": rows, **changes})
