"""A dataset of a Hugging Face hub, pinned to a revision."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from pydantic import Field

from experiments.parts.hubclient import Snapshot, cached_snapshot, fetch_snapshot
from experiments.parts.split_files import split_files
from experiments.parts.suits import check_suits
from experiments.parts.tabular import QUICK_BYTES, check_columns, read_examples
from experiments.protocols import DatasetSource, Examples, Host, Task


class HubDataset(DatasetSource):
    """A hub dataset repository at a revision; only its data files are read, its code never runs."""

    title = "Hub dataset"
    summary = "Parquet, CSV or JSONL files of a dataset repository of the Hugging Face hub (or of HF_ENDPOINT)."

    source: Literal["hub"] = "hub"
    name: str = Field(min_length=1, max_length=200, description="organisation/name")
    revision: str = Field(default="main", min_length=1, max_length=200, description="Branch, tag or commit.")
    config: str | None = Field(default=None, max_length=200, description="Configuration, if the dataset has several.")
    columns: dict[Literal["text", "pair", "label", "score", "image"], str] = Field(
        default_factory=dict, description="Role -> column; what is left out is guessed by name and said."
    )
    limit: int | None = Field(default=None, ge=1, le=10_000_000)

    def display(self) -> str:
        """E.g. ``org/name/test``."""
        return f"{self.name}/{self.split}"

    def load(self, host: Host, task: Task, split: str | None = None, limit: int | None = None) -> Examples:
        """The rows of a split; fetches only that split's files."""
        wanted = split or self.split

        def choose(files: dict[str, int | None]) -> list[str]:
            return split_files(files, wanted, self.name, self.config)

        snapshot = fetch_snapshot(host, "dataset", self.name, self.revision, self._part(wanted), choose)
        rows = read_examples(
            _files(snapshot),
            name=f"{self.name}/{wanted}",
            columns=self.columns,
            task=task,
            limit=limit or self.limit,
            split=wanted,
        )
        check_suits(rows, task)
        return rows

    def peek(self, host: Host, task: Task, split: str | None = None) -> Examples | None:
        """All of it if it was fetched before and is small; None else."""
        kept = cached_snapshot(host, "dataset", self.name, self.revision, self._part(split or self.split))
        if kept is None:
            return None
        if sum(file.stat().st_size for file in _files(kept)) <= QUICK_BYTES:
            return self.load(dataclasses.replace(host, offline=True), task, split)
        check_columns(_files(kept), self.columns, task)
        return None

    def stamp(self, host: Host) -> str:
        """The commits that were fetched."""
        splits = (self.split, self.train_split, self.calibration_split)
        kept = [cached_snapshot(host, "dataset", self.name, self.revision, self._part(s)) for s in splits if s]
        return repr([snapshot and snapshot.commit for snapshot in kept])

    def _part(self, split: str) -> str:
        return f"{self.config or ''}/{split}"


def _files(snapshot: Snapshot) -> list[Path]:
    return sorted(path for path in snapshot.folder.rglob("*") if path.is_file())
