"""A dataset of a Hugging Face hub, pinned to a revision."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from experiments.parts.hubclient import fetch_snapshot
from experiments.parts.split_files import split_files
from experiments.parts.suits import check_suits
from experiments.parts.tabular import read_examples
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

        snapshot = fetch_snapshot(host, "dataset", self.name, self.revision, f"{self.config}/{wanted}", choose)
        names = [p.relative_to(snapshot.folder).as_posix() for p in snapshot.folder.rglob("*") if p.is_file()]
        rows = read_examples(
            [snapshot.folder / name for name in sorted(names)],
            name=f"{self.name}/{wanted}",
            columns=self.columns,
            task=task,
            limit=limit or self.limit,
            split=wanted,
        )
        check_suits(rows, task)
        return rows
