"""A Hugging Face folder on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from experiments.parts.local_paths import allowed_path, check_inside
from experiments.parts.model_facts import facts_of_folder
from experiments.parts.model_folder import ready_already, ready_folder
from experiments.protocols import Host, ModelFacts, ModelSource
from experiments.records import FailureKind


class PathModel(ModelSource):
    """A local folder with config.json and safetensors."""

    title = "Folder"
    summary = "A folder on this machine as save_pretrained writes it: config.json, safetensors, tokenizer."

    source: Literal["path"] = "path"
    path: str = Field(min_length=1, max_length=4096, description="Folder with config.json and *.safetensors.")

    def display(self) -> str:
        """The folder's name."""
        return Path(self.path).name or self.path

    def inspect(self, host: Host) -> ModelFacts:
        """Facts from config.json and the weights' headers; raises ``bad_model`` if the folder can never run."""
        return facts_of_folder(self._folder(host), name=self.display())

    def fetch(self, host: Host) -> Path:
        """The folder, or a linked copy with a converted tokenizer."""
        folder = self._folder(host)
        return ready_folder(host, folder, facts_of_folder(folder, name=self.display()))

    def ready(self, host: Host) -> Path | None:
        """The folder, if it needs no conversion of its tokenizer."""
        folder = self._folder(host)
        return ready_already(host, folder, facts_of_folder(folder, name=self.display()))

    def _folder(self, host: Host) -> Path:
        folder = allowed_path(self.path, host, FailureKind.BAD_MODEL, "model.path")
        if folder.is_dir():
            check_inside(folder, host, FailureKind.BAD_MODEL, "model.path")
        return folder
