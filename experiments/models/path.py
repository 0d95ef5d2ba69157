"""A Hugging Face folder on this machine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from experiments.protocols import ModelSource


class PathModel(ModelSource):
    """A local folder with config.json and safetensors."""

    source: Literal["path"] = "path"
    path: str = Field(min_length=1, max_length=4096)
