"""A model of a Hugging Face hub, pinned to a revision."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from experiments.protocols import ModelSource


class HubModel(ModelSource):
    """A hub repository at a revision."""

    source: Literal["hub"] = "hub"
    name: str = Field(min_length=1, max_length=200)
    revision: str = Field(default="main", min_length=1, max_length=200)
