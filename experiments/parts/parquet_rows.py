"""Parquet: only the columns that are wanted are read, so nested neighbours never matter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.records import ExperimentError, FailureKind

_BATCH = 4_096  # rows read at once


@dataclass(frozen=True)
class ParquetFile:
    """An opened Parquet file: its columns and, where the file names them, its classes; :meth:`rows` streams it."""

    path: Path
    columns: tuple[str, ...]
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    #: How rows are counted in messages.
    place = "row"

    @classmethod
    def open(cls, path: Path) -> ParquetFile:
        """Read the footer.

        Raises:
            ExperimentError: ``bad_dataset`` if it is not Parquet or has no rows.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _bad(f"{path.name} is not a whole Parquet file: {str(error)[:150]}") from None
        if rows == 0:
            raise _bad(f"{path.name} has no rows")
        return cls(path, tuple(schema.names), _classes(schema.metadata or {}))

    def rows(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """(row number from 1, values of the wanted columns); null is None, class numbers become their names."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        number = 0
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(_BATCH, columns=list(dict.fromkeys(wanted))):
                    read = {name: self._named(name, batch.column(name).to_pylist()) for name in set(wanted)}
                    for cells in zip(*(read[name] for name in wanted), strict=True):
                        number += 1
                        yield number, cells
        except (pa.ArrowException, OSError) as error:
            raise _bad(f"{self.path.name} can't be read after row {number:,}: {str(error)[:150]}") from None

    def _named(self, name: str, values: list[Any]) -> list[Any]:
        names = self.classes.get(name)
        if names is None:
            return values
        return [names[v] if isinstance(v, int) and 0 <= v < len(names) else None if v == -1 else v for v in values]


def preview(path: Path, count: int = 20) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and the first rows as text, for people: nested values are shown as JSON."""
    import pyarrow.parquet as pq

    opened = ParquetFile.open(path)
    rows: list[tuple[str, ...]] = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(count):
            rows += [tuple(_shown(value) for value in row.values()) for row in batch.to_pylist()]
            if len(rows) >= count:
                break
    return opened.columns, rows[:count]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _classes(metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Column -> class names, where the ``datasets`` library wrote them into the schema."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return {
            name: tuple(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # the note is an extra of one library; a file without it is as good


def _bad(message: str) -> ExperimentError:
    return ExperimentError(
        FailureKind.BAD_DATASET, message, fix="Check how the file was written.", field="dataset.path"
    )
