"""JSON Lines: one object a line, blank lines ignored, every fault named by its line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from experiments.parts.csv_rows import text_lines
from experiments.records import ExperimentError, FailureKind

_FIX = "Write one JSON object on each line."
_SAMPLE = 1_000  # objects from which the columns are learnt
MAX_ARRAY = 1 << 28  # bytes of a file that is one JSON array


@dataclass(frozen=True)
class JsonlFile:
    """An opened JSONL file (or a file that is one JSON array of objects): its columns; :meth:`rows` streams it."""

    path: Path
    columns: tuple[str, ...]
    notes: tuple[str, ...] = ()

    #: How rows are counted in messages.
    place = "line"

    @classmethod
    def open(cls, path: Path) -> JsonlFile:
        """Learn the columns from the first objects.

        Raises:
            ExperimentError: ``bad_dataset`` if there is no object.
        """
        columns: dict[str, None] = {}
        for _, row in islice(_objects(path), _SAMPLE):
            columns.update(dict.fromkeys(row))
        if not columns:
            raise _bad(f"{path.name} has no rows", _FIX)
        return cls(path, tuple(columns))

    def rows(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """(line, values of the wanted keys); an absent key and null are None.

        Raises:
            ExperimentError: ``bad_dataset`` naming a line that is not a JSON object.
        """
        for line, row in _objects(self.path):
            yield line, tuple(row.get(name) for name in wanted)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as handle:
        start = handle.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"["):
        yield from _array(path)
        return
    for number, line in text_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad(
                f"{path.name}, line {number} is not valid JSON: {str(error)[:120]}",
                "Write one JSON object on each line.",
            ) from None
        yield number, _object(row, path, f"line {number}")


def _array(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.stat().st_size > MAX_ARRAY:
        raise _bad(
            f"{path.name} is one JSON array of more than {MAX_ARRAY // 2**20} MiB",
            "Write one JSON object on each line.",
        )
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _bad(
            f"{path.name} is not valid JSON: {str(error)[:120]}", "Write one JSON object on each line."
        ) from None
    for number, row in enumerate(rows, 1):
        yield number, _object(row, path, f"element {number}")


def _object(row: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise _bad(
            f"{path.name}, {where}: {type(row).__name__}, expected an object with columns",
            'Write rows as {"text": "...", "label": "..."}.',
        )
    return row


def _bad(message: str, fix: str) -> ExperimentError:
    return ExperimentError(FailureKind.BAD_DATASET, message, fix=fix, field="dataset.path")
