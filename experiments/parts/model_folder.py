"""A checked Hugging Face folder that every part of the engine can read: weights as safetensors, tokenizer as JSON."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from experiments.parts.cache import Cache
from experiments.parts.quiet import quiet_transformers
from experiments.protocols import Host, ModelFacts
from experiments.records import ExperimentError, FailureKind

#: What a tokenizer of before tokenizer.json is made of.
_SLOW = ("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_KEPT = (".safetensors", ".json", ".txt", ".model", ".jinja")


def ready_already(host: Host, folder: Path, facts: ModelFacts) -> Path | None:
    """The folder that :func:`ready_folder` gives, if nothing is left to convert."""
    if _complete(folder, facts):
        return folder
    made = Cache(host.cache).path("models", _key(folder))
    return made if made.is_dir() else None


def ready_folder(host: Host, folder: Path, facts: ModelFacts) -> Path:
    """``folder`` itself, or a linked copy in the cache with the tokenizer.json that it lacks.

    Raises:
        ExperimentError: ``bad_model`` if a text model has no tokenizer at all or an old one that can't be converted.
    """
    if _complete(folder, facts):
        return folder
    if not any((folder / name).is_file() for name in _SLOW):
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"{facts.name} has no tokenizer (no tokenizer.json, none of the older files)",
            fix="Save the tokenizer beside the model: AutoTokenizer.from_pretrained(...).save_pretrained(folder).",
            field="model",
        )

    def make(target: Path) -> None:
        for path in folder.iterdir():
            if _kept(path):
                _link(path, target / path.name)
        _convert(target, facts.name)

    ready, _ = Cache(host.cache).get("models", _key(folder), make)
    return ready


def _complete(folder: Path, facts: ModelFacts) -> bool:
    """True if there is a tokenizer.json, or the model takes images and needs none."""
    return (facts.image_size is not None and facts.vocab_size is None) or (folder / "tokenizer.json").is_file()


def _key(folder: Path) -> dict[str, object]:
    files = {p.name: [p.stat().st_size, p.stat().st_mtime_ns] for p in sorted(folder.iterdir()) if _kept(p)}
    return {"folder": str(folder), "files": files}


def _kept(path: Path) -> bool:
    return path.is_file() and path.suffix in _KEPT


def _link(source: Path, target: Path) -> None:
    """A second name for the file where the disk allows it, else a copy."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)


def _convert(folder: Path, name: str) -> None:
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                folder, use_fast=True, trust_remote_code=False, local_files_only=True
            )
        tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    except Exception as error:  # the converters of transformers raise whatever their libraries raise
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"the old tokenizer of {name} can't be converted to tokenizer.json: "
            f"{(str(error).splitlines() or [type(error).__name__])[0][:200]}",
            fix="Save it once as a fast tokenizer: AutoTokenizer.from_pretrained(...).save_pretrained(folder).",
            field="model",
        ) from error
