"""The one place that makes :class:`Examples` and hashes rows by their contents."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.protocols import Examples

if TYPE_CHECKING:
    import numpy.typing as npt


def make_examples(
    name: str,
    *,
    texts: Sequence[str] = (),
    pairs: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    images: npt.NDArray[Any] | None = None,
    total: int,
    notes: Sequence[str] = (),
) -> Examples:
    """Examples with ``sha256`` over the rows' contents; columns must have equal lengths.

    ``total`` is the number of rows of the split before any limit.
    """
    count = len(texts) if images is None else len(images)
    for column in (pairs, labels, scores):
        if column is not None and len(column) != count:
            raise ValueError(f"columns of {name} differ in length: {len(column)} and {count}")
    made = Examples(
        name=name,
        sha256="",
        texts=tuple(texts),
        pairs=None if pairs is None else tuple(pairs),
        labels=None if labels is None else tuple(labels),
        scores=None if scores is None else tuple(scores),
        images=images,
        total=total,
        notes=tuple(notes),
    )
    whole = hashlib.sha256("\n".join(row_hashes(made)).encode()).hexdigest()
    return Examples(**{**vars(made), "sha256": whole})


def row_hashes(examples: Examples) -> list[str]:
    """SHA-256 of each row's contents, labels included; equal rows have equal hashes wherever they came from."""
    hashes = []
    for index in range(len(examples)):
        row = hashlib.sha256()
        for cell in _cells(examples, index):
            row.update(len(cell).to_bytes(8, "little"))
            row.update(cell)
        hashes.append(row.hexdigest())
    return hashes


def input_hashes(examples: Examples) -> list[str]:
    """SHA-256 of each row's input alone (text, pair, image): what must not lie in two splits."""
    bare = Examples(**{**vars(examples), "labels": None, "scores": None})
    return row_hashes(bare)


def _cells(examples: Examples, index: int) -> list[bytes]:
    cells: list[bytes] = []
    if examples.images is not None:
        image = examples.images[index]
        cells.append(f"{image.dtype.str}{image.shape}".encode() + image.tobytes())
    else:
        cells.append(b"t" + examples.texts[index].encode("utf-8", "surrogatepass"))
    if examples.pairs is not None:
        cells.append(b"p" + examples.pairs[index].encode("utf-8", "surrogatepass"))
    if examples.labels is not None:
        cells.append(b"l" + examples.labels[index].encode("utf-8", "surrogatepass"))
    if examples.scores is not None:
        cells.append(b"s" + repr(float(examples.scores[index])).encode())
    return cells


def first_rows(examples: Examples, limit: int | None) -> Examples:
    """The first ``limit`` rows (all of them for None), with ``total`` kept."""
    if limit is None or limit >= len(examples):
        return examples
    return make_examples(
        examples.name,
        texts=examples.texts[:limit],
        pairs=None if examples.pairs is None else examples.pairs[:limit],
        labels=None if examples.labels is None else examples.labels[:limit],
        scores=None if examples.scores is None else examples.scores[:limit],
        images=None if examples.images is None else examples.images[:limit],
        total=examples.total,
        notes=(*examples.notes, f"the first {limit:,} of {len(examples):,} rows"),
    )
