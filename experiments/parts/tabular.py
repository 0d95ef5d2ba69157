"""CSV, JSONL and Parquet files to :class:`Examples`: one reader for data on disk and data of a hub."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from experiments.parts.cells import CellError, image_cell, label_cell, score_cells, text_cell
from experiments.parts.columns import Role, Roles, assign_roles
from experiments.parts.csv_rows import CsvFile
from experiments.parts.examples import make_examples
from experiments.parts.jsonl_rows import JsonlFile
from experiments.parts.parquet_rows import ParquetFile
from experiments.protocols import Examples, Task
from experiments.records import ExperimentError, FailureKind

#: Rows drawn for a limit are the same in every run.
SAMPLE_SEED = 0
#: Files up to this size are read whole before an experiment is queued; larger ones by their heads.
QUICK_BYTES = 16 << 20


class Opened(Protocol):
    """A file of rows whose columns are known."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was guessed on opening."""

    @property
    def place(self) -> str:
        """'line' or 'row'."""

    def rows(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """(place, cells) of each row."""


_READERS: dict[str, Callable[[Path], Opened]] = {
    ".csv": CsvFile.open,
    ".tsv": CsvFile.open,
    ".jsonl": JsonlFile.open,
    ".ndjson": JsonlFile.open,
    ".json": JsonlFile.open,
    ".parquet": ParquetFile.open,
}
ENDINGS = tuple(_READERS)


@dataclass
class _Row:
    file: str
    place: str
    number: int
    cells: tuple[Any, ...]


def read_examples(
    files: Sequence[Path],
    *,
    name: str,
    columns: Mapping[Role, str],
    task: Task,
    limit: int | None,
    split: str | None = None,
) -> Examples:
    """The rows of ``files`` in order, with the columns that ``task`` needs.

    Rows with an empty input or label are left out and counted in the notes. With a ``limit`` below the number of
    rows, that many are drawn with a fixed seed (files are often sorted by class) and kept in file order. A column
    named 'split' that holds ``split`` restricts the rows to it.

    Raises:
        ExperimentError: ``bad_dataset`` naming file, line or row, and column.
    """
    opened = [(path, _open(path)) for path in files]
    first_path, first = opened[0]
    roles = assign_roles(first.columns, columns, task, first_path.name)
    notes = [note for _, file in opened for note in file.notes] + list(roles.notes)
    wanted = tuple(roles.columns.values())
    by_split = _split_column(first) if split and all(holds_split(path, split) for path in files) else None
    for path, file in opened[1:]:
        if absent := [column for column in wanted if column not in file.columns]:
            raise _bad(f"{path.name} has no column {absent[0]!r}, which {first_path.name} has", "dataset.path")

    missing: list[_Row] = []
    needed = tuple(list(roles.columns).index(role) for role in roles.columns if role in ("text", "image", "label"))

    def complete() -> Iterator[_Row]:
        for path, file in opened:
            for number, cells in file.rows((*wanted, by_split) if by_split else wanted):
                if by_split and cells[-1] != split:
                    continue
                row = _Row(path.name, file.place, number, cells)
                if any(cells[index] is None or cells[index] == "" for index in needed):
                    missing.append(row)
                else:
                    yield row

    rows, total = _drawn(complete(), limit)
    if not rows:
        why = f"no rows with a value in each of {', '.join(map(repr, wanted))}" if missing else "no rows"
        raise _bad(f"{name}: {why}", "dataset")
    if by_split:
        notes.append(f"rows whose {by_split!r} is {split!r}")
    if missing:
        at = f"{missing[0].place} {missing[0].number} of {missing[0].file}"
        notes.append(f"{len(missing):,} rows with an empty cell left out, first {at}")
    if len(rows) < total:
        notes.append(f"{len(rows):,} of {total:,} rows drawn with seed {SAMPLE_SEED}, in file order")
    return _examples(name, roles, rows, total, notes)


def check_columns(files: Sequence[Path], columns: Mapping[Role, str], task: Task) -> None:
    """Raise ``bad_dataset`` if the files lack a column that ``task`` needs; reads little more than their heads."""
    for path in files:
        assign_roles(_open(path).columns, columns, task, path.name)


def holds_split(path: Path, split: str) -> bool:
    """True if the file has a column named 'split' and a row whose value there is ``split``."""
    file = _open(path)
    column = _split_column(file)
    return column is not None and any(cells[0] == split for _, cells in file.rows((column,)))


def _open(path: Path) -> Opened:
    reader = _READERS.get(path.suffix.casefold())
    if reader is None:
        raise _bad(
            f"{path.name}: files ending in {path.suffix or 'nothing'!r} can't be read; "
            f"give one of {', '.join(ENDINGS)}",
            "dataset.path",
        )
    if path.stat().st_size == 0:
        raise _bad(f"{path.name} is empty (0 bytes)", "dataset.path")
    return reader(path)


def _split_column(file: Opened) -> str | None:
    return next((name for name in file.columns if name.strip().casefold() == "split"), None)


def _drawn(rows: Iterator[_Row], limit: int | None) -> tuple[list[_Row], int]:
    """At most ``limit`` rows in their order (Vitter's algorithm R, 1985) and how many there were."""
    if limit is None:
        every = list(rows)
        return every, len(every)
    chance = random.Random(SAMPLE_SEED)
    kept: list[tuple[int, _Row]] = []
    total = 0
    for row in rows:
        if len(kept) < limit:
            kept.append((total, row))
        elif (slot := chance.randrange(total + 1)) < limit:
            kept[slot] = (total, row)
        total += 1
    return [row for _, row in sorted(kept, key=lambda entry: entry[0])], total


def _examples(name: str, roles: Roles, rows: list[_Row], total: int, notes: list[str]) -> Examples:
    order = list(roles.columns)

    def column(role: Role, convert: Callable[[Any], Any]) -> list[Any] | None:
        if role not in roles.columns:
            return None
        index = order.index(role)
        values = []
        for row in rows:
            try:
                values.append(convert(row.cells[index]))
            except CellError as error:
                raise _cell(row, roles.columns[role], error) from None
        return values

    texts = column("text", text_cell)
    pairs = column("pair", text_cell)
    labels = column("label", label_cell)
    if labels is not None:
        kinds = {type(row.cells[order.index("label")]) for row in rows}
        if len(kinds) > 1:
            notes.append(f"{roles.columns['label']!r} mixes strings and numbers; 1 and '1' are one class")
    scores = None
    if "score" in roles.columns:
        index = order.index("score")
        try:
            scores, how = score_cells([row.cells[index] for row in rows])
        except CellError as error:
            raise _cell(rows[error.row], roles.columns["score"], error) from None  # type: ignore[attr-defined]
        if how:
            notes.append(f"{roles.columns['score']!r} is written with {how}")
    images = column("image", image_cell)
    stacked = None
    if images is not None:
        import numpy as np

        for row, image in zip(rows, images, strict=True):
            if image.shape != images[0].shape:
                wrong = CellError(f"an image of {image.shape}, the first is {images[0].shape}")
                raise _cell(row, roles.columns["image"], wrong)
        stacked = np.stack(images)
    return make_examples(
        name,
        texts=texts or (),
        pairs=pairs,
        labels=labels,
        scores=scores,
        images=stacked,
        total=total,
        notes=notes,
    )


def _cell(row: _Row, column: str, error: CellError) -> ExperimentError:
    return _bad(f"{row.file}, {row.place} {row.number}, column {column!r}: {error}", "dataset.columns", line=row.number)


def _bad(message: str, field: str, **detail: Any) -> ExperimentError:
    return ExperimentError(
        FailureKind.BAD_DATASET, message, fix="Correct the file or the mapping of columns.", field=field, **detail
    )
