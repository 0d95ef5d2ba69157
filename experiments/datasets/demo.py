"""Real data that needs no hub."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from experiments.protocols import DatasetSource


class DemoDataset(DatasetSource):
    """A demo dataset by name."""

    source: Literal["demo"] = "demo"
    name: Literal["reviews", "python-docs", "digits"]
    split: str = "test"
    limit: int | None = Field(default=None, ge=1, le=10_000_000)
