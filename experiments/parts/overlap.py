"""Rows that a model is made from may not be those that it is judged by."""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from experiments.parts.examples import input_hashes
from experiments.protocols import Examples
from experiments.records import ExperimentError, FailureKind


def row_keys(examples: Examples) -> frozenset[bytes]:
    """A short content hash of each row's input (labels aside), small enough to keep."""
    return frozenset(bytes.fromhex(row)[:12] for row in input_hashes(examples))


def refuse_overlap(evaluation: Set[bytes], other: Set[bytes], use: Literal["train", "calibration"], split: str) -> None:
    """Raise ``bad_dataset`` if a row of ``evaluation`` is also in ``other`` (both from :func:`row_keys`)."""
    if shared := len(evaluation & other):
        raise ExperimentError(
            FailureKind.BAD_DATASET,
            f"{shared:,} of the {len(evaluation):,} evaluation rows are also in the {use} split {split!r}",
            fix="Evaluate on rows that the model was not made from.",
            field=f"dataset.{use}_split",
        )
