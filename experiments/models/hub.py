"""A model of a Hugging Face hub, pinned to a revision."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field

from experiments.parts.hubclient import Snapshot, cached_snapshot, fetch_snapshot
from experiments.parts.model_facts import facts_of_folder
from experiments.parts.model_folder import ready_already, ready_folder
from experiments.parts.weights import PICKLES
from experiments.protocols import Host, ModelFacts, ModelSource
from experiments.records import ExperimentError, FailureKind

_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
_COMPANIONS = {
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
}
_TOKENIZERS = re.compile(r"tokenizer[\w.-]*\.json|[\w.-]+\.model")


class HubModel(ModelSource):
    """A hub repository at a revision."""

    title = "Hub model"
    summary = "A model repository of the Hugging Face hub (or of HF_ENDPOINT); only safetensors, never code."

    source: Literal["hub"] = "hub"
    name: str = Field(min_length=1, max_length=200, description="organisation/name")
    revision: str = Field(
        default="main", min_length=1, max_length=200, description="Branch, tag or commit; the commit is recorded."
    )

    def display(self) -> str:
        """The repository's name."""
        return self.name

    def inspect(self, host: Host) -> ModelFacts | None:
        """Facts if the revision was fetched before, else None."""
        kept = cached_snapshot(host, "model", self.name, self.revision)
        return self._facts(kept) if kept else None

    def fetch(self, host: Host) -> Path:
        """The checked folder; downloads what is not in the cache."""
        snapshot = fetch_snapshot(host, "model", self.name, self.revision, "", self._choose)
        return ready_folder(host, snapshot.folder, self._facts(snapshot))

    def ready(self, host: Host) -> Path | None:
        """The checked folder, if a fetch would bring nothing new: fetched before, at a commit or offline."""
        kept = cached_snapshot(host, "model", self.name, self.revision)
        if kept is None or not (host.offline or self.revision == kept.commit):
            return None
        return ready_already(host, kept.folder, self._facts(kept))

    def _facts(self, snapshot: Snapshot) -> ModelFacts:
        return facts_of_folder(snapshot.folder, name=self.name, revision=snapshot.commit)

    def _choose(self, files: dict[str, int | None]) -> list[str]:
        weights = [name for name in files if _WEIGHTS.fullmatch(name)]
        if "model.safetensors" in weights:
            weights = ["model.safetensors"]
        if not weights:
            pickles = [name for name in files if name.endswith(PICKLES)]
            found = (
                f"its weights exist only as {pickles[0]}, which can run code when loaded" if pickles else "no weights"
            )
            raise ExperimentError(
                FailureKind.BAD_MODEL,
                f"{self.name} has no safetensors weights: {found}",
                fix="Choose a revision with safetensors (often there is one in refs/pr/...), or convert it once.",
                field="model.name",
            )
        if "config.json" not in files:
            raise ExperimentError(
                FailureKind.BAD_MODEL,
                f"{self.name} has no config.json, so its architecture is unknown",
                fix="Choose a repository made by save_pretrained.",
                field="model.name",
            )
        return weights + [name for name in files if name in _COMPANIONS or _TOKENIZERS.fullmatch(name)]
