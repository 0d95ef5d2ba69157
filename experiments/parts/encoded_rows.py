"""Rows of a dataset as batches of a model's inputs, to learn from or to calibrate on. Torch-free.

They are prepared exactly as the rows that quality is judged on (``parts/packs.py``): same tokenizer, truncation,
padding and pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from experiments.parts.batches import batches_by_length
from experiments.parts.images import image_pixels
from experiments.parts.packs import class_targets
from experiments.parts.padded_rows import TYPED, Arrays, pad_id, pad_rows
from experiments.parts.tokenizer import load_tokenizer
from experiments.protocols import BuildContext, Examples
from experiments.records import ExperimentError, FailureKind


@dataclass(frozen=True)
class EncodedRows:
    """Rows ready to be put into batches.

    Attributes:
        tokens: one list of token ids a row (empty for images).
        types: token types a row, for models that take them.
        pixels: float32 (N, channels, height, width), for images.
        labels: int64 (N,) class indices in the model's order, or None.
        windows: the rows are windows of running text; every token but the first is a target.
        pad: id of the padding token.
    """

    tokens: tuple[tuple[int, ...], ...] = ()
    types: tuple[tuple[int, ...], ...] | None = None
    pixels: npt.NDArray[np.float32] | None = None
    labels: npt.NDArray[np.int64] | None = None
    windows: bool = False
    pad: int = 0

    def __len__(self) -> int:
        return len(self.tokens) if self.pixels is None else len(self.pixels)

    def batch(self, rows: Sequence[int]) -> Arrays:
        """The model's inputs for ``rows``, padded on the right to the longest of them; no targets."""
        if self.pixels is not None:
            return {"pixel_values": self.pixels[list(rows)]}
        types = [list(self.types[row]) for row in rows] if self.types is not None else None
        return pad_rows([list(self.tokens[row]) for row in rows], self.pad, types)

    def targets(self, rows: Sequence[int]) -> npt.NDArray[np.int64] | None:
        """Class indices (batch,), or for windows of text the tokens themselves (batch, length) with -100 at padding.

        None if the rows have no labels.
        """
        if self.windows:
            padded = self.batch(rows)
            return np.where(padded["attention_mask"] == 1, padded["input_ids"], -100)
        return None if self.labels is None else self.labels[list(rows)]

    def only(self, rows: Sequence[int]) -> EncodedRows:
        """The given rows alone."""
        return replace(
            self,
            tokens=tuple(self.tokens[row] for row in rows) if self.pixels is None else (),
            types=None if self.types is None else tuple(self.types[row] for row in rows),
            pixels=None if self.pixels is None else self.pixels[list(rows)],
            labels=None if self.labels is None else self.labels[list(rows)],
        )

    def in_order(self, size: int) -> Iterator[list[int]]:
        """Row indices of batches of at most ``size``, each row once, shortest rows first."""
        order = sorted(range(len(self)), key=lambda row: (self._length(row), row))
        for start in range(0, len(order), size):
            yield order[start : start + size]

    def shuffled(self, size: int, seed: int) -> Iterator[list[int]]:
        """Row indices of endless seeded batches of ``size``, of like lengths together.

        Raises:
            ExperimentError: ``bad_dataset`` if there are fewer rows than one batch.
        """
        if len(self) < size:
            raise ExperimentError(
                FailureKind.BAD_DATASET,
                f"there are {len(self):,} rows to learn from, fewer than one batch of {size:,}",
                fix="Use a smaller batch_size or more rows.",
                field="dataset.train_split",
            )
        return batches_by_length([self._length(row) for row in range(len(self))], size, seed)

    def _length(self, row: int) -> int:
        return len(self.tokens[row]) if self.pixels is None else 0


def encode_rows(rows: Examples, context: BuildContext, *, length: int | None = None) -> EncodedRows:
    """Encode ``rows`` for the model in ``context``, truncated (or cut into windows) at ``length`` tokens.

    ``length`` is at most what the model holds; the default is the workload's sequence length.

    Raises:
        ExperimentError: ``bad_dataset`` if there is no row, no text long enough for one window, or a label that the
            model does not know.
    """
    if not len(rows):
        raise ExperimentError(FailureKind.BAD_DATASET, f"{rows.name} has no rows", field="dataset")
    facts = context.facts
    labels = None
    if context.task.endswith("classification") and rows.labels is not None:
        labels, _ = class_targets(rows, facts)
    if context.task == "image-classification":
        assert rows.images is not None, "a dataset is checked against its task when it is loaded"
        return EncodedRows(pixels=image_pixels(context.source, rows.images), labels=labels)
    limit = min(length or context.sequence_length, facts.max_length or context.sequence_length)
    tokenizer = load_tokenizer(context.source)
    tokenizer.no_padding()
    if context.task == "text-generation":
        tokenizer.no_truncation()
        ids = tokenizer.encode("\n\n".join(rows.texts), add_special_tokens=False).ids
        windows = [tuple(ids[start : start + limit]) for start in range(0, len(ids) - limit + 1, limit)]
        if not windows:
            raise ExperimentError(
                FailureKind.BAD_DATASET,
                f"{rows.name} has {len(ids):,} tokens, fewer than one window of {limit:,}",
                fix="Choose a longer text or a shorter workload.sequence_length.",
                field="dataset",
            )
        return EncodedRows(tokens=tuple(windows), windows=True)
    tokenizer.enable_truncation(limit)
    inputs = list(zip(rows.texts, rows.pairs, strict=True)) if rows.pairs and not rows.scores else list(rows.texts)
    encoded = tokenizer.encode_batch(inputs)
    if rows.pairs and rows.scores:
        encoded += tokenizer.encode_batch(list(rows.pairs))
    return EncodedRows(
        tokens=tuple(tuple(row.ids) for row in encoded),
        types=tuple(tuple(row.type_ids) for row in encoded) if facts.model_type in TYPED else None,
        labels=labels,
        pad=pad_id(tokenizer),
    )
