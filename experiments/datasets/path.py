"""A CSV, JSONL or Parquet file on this machine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from experiments.protocols import DatasetSource


class PathDataset(DatasetSource):
    """A file of rows with a mapping of columns."""

    source: Literal["path"] = "path"
    path: str = Field(min_length=1, max_length=4096)
    columns: dict[Literal["text", "pair", "label", "score", "image"], str] = Field(default_factory=dict)
