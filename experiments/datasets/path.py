"""A CSV, JSONL or Parquet file on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from experiments.parts.local_paths import allowed_path, check_inside
from experiments.parts.split_files import split_files
from experiments.parts.suits import check_suits
from experiments.parts.tabular import QUICK_BYTES, check_columns, holds_split, read_examples
from experiments.protocols import DatasetSource, Examples, Host, Task
from experiments.records import ExperimentError, FailureKind


class PathDataset(DatasetSource):
    """A file of rows with a mapping of columns, or a folder with one file per split."""

    title = "File"
    summary = "A CSV, JSONL or Parquet file on this machine, or a folder with train.csv, test.csv and so on."

    source: Literal["path"] = "path"
    path: str = Field(min_length=1, max_length=4096, description="File, or folder with a file for each split.")
    columns: dict[Literal["text", "pair", "label", "score", "image"], str] = Field(
        default_factory=dict, description="Role -> column; what is left out is guessed by name and said."
    )
    limit: int | None = Field(default=None, ge=1, le=10_000_000)

    def display(self) -> str:
        """The file's name."""
        return Path(self.path).name or self.path

    def load(self, host: Host, task: Task, split: str | None = None, limit: int | None = None) -> Examples:
        """The rows of a split.

        A folder has one file per split. A single file is one split, unless it has a column 'split'.
        """
        wanted = split or self.split
        files = self._files(host, wanted)
        rows = read_examples(
            files, name=self.display(), columns=self.columns, task=task, limit=limit or self.limit, split=wanted
        )
        check_suits(rows, task)
        return rows

    def peek(self, host: Host, task: Task, split: str | None = None) -> Examples | None:
        """All of it if the files are small; else only their columns are checked."""
        files = self._files(host, split or self.split)
        if sum(file.stat().st_size for file in files) <= QUICK_BYTES:
            return self.load(host, task, split)
        check_columns(files, self.columns, task)
        return None

    def stamp(self, host: Host) -> str:
        """Sizes and times of the files."""
        try:
            place = allowed_path(self.path, host, FailureKind.BAD_DATASET, "dataset.path")
            files = sorted(place.rglob("*")) if place.is_dir() else [place]
            return repr([(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files])
        except (ExperimentError, OSError) as error:
            return str(error)

    def _files(self, host: Host, wanted: str) -> list[Path]:
        place = allowed_path(self.path, host, FailureKind.BAD_DATASET, "dataset.path")
        if place.is_dir():
            check_inside(place, host, FailureKind.BAD_DATASET, "dataset.path")
            names = [p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()]
            files = [place / name for name in split_files(names, wanted, place.name)]
        else:
            files = [place]
            if wanted != self.split and not holds_split(place, wanted):
                raise ExperimentError(
                    FailureKind.BAD_DATASET,
                    f"{place.name} is one file, so it holds one split ({self.split!r}); there is no {wanted!r}",
                    fix=f"Give a folder with {self.split}.csv and {wanted}.csv, or add a column 'split'.",
                    field="dataset.path",
                )
        return files
