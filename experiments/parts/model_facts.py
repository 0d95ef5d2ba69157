"""What can be known of a model folder without torch, and every reason why it can never run."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from experiments.parts.architectures import installed_version, known_model_types, task_of
from experiments.parts.tied import config_ties, stored_twins
from experiments.parts.weights import Stored, main_dtype, stored_tensors
from experiments.protocols import ModelFacts
from experiments.records import ExperimentError, FailureKind

#: Prefixes that wrappers for distributed training and compilation leave on every name.
WRAPPERS = ("module.", "_orig_mod.")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "hidden_dim")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
#: Types whose learned positions start after the padding token, so two fewer tokens fit than the table is long.
_OFFSET = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "xlm-roberta-xl", "data2vec-text", "roformer"}
_NO_LIMIT = 10**9  # tokenizers write 1e30 for "no limit"


def facts_of_folder(folder: Path, name: str | None = None, revision: str | None = None) -> ModelFacts:
    """Facts from config.json and the weights' headers.

    Raises:
        ExperimentError: ``bad_model`` if the folder can never run: no or unknown config, missing shards, damaged
            files, pickle only, wrong ties. The message names file and reason.
    """
    if not folder.is_dir():
        raise _bad(f"there is no folder {folder.name!r}", "Check the path; it must be a folder with config.json.")
    stamps = tuple((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.iterdir()) if p.is_file())
    return _facts(folder, stamps, name or folder.name, revision)


@lru_cache(maxsize=64)
def _facts(folder: Path, _stamps: tuple[tuple[str, int, int], ...], name: str, revision: str | None) -> ModelFacts:
    config = read_config(folder)
    model_type = _model_type(config, folder)
    tensors = stored_tensors(folder)
    if not tensors:
        raise _bad("the weights hold no tensors", "Save the model again with save_pretrained.")
    notes = [str(note) for note in config.get("steelyard_notes", [])]
    if prefix := wrapper_prefix(tensors):
        notes.append(f"every weight is named {prefix!r}...: the prefix of a training wrapper, removed on loading")
    twins = stored_twins(tensors, config)
    if twins:
        notes.append(f"{twins[1]} is stored although tied to {twins[0]}; it is counted once")
    if remote := _remote_code(config):
        notes.append(f"the folder brings its own code ({remote}); it is never run, the built-in {model_type} is used")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    both = {**(text or {}), **config}
    architectures = tuple(str(a) for a in config.get("architectures") or ())
    heads = _first(both, _HEADS)
    quantization = config.get("quantization_config")
    return ModelFacts(
        name=name,
        model_type=model_type,
        architectures=architectures,
        task=task_of(architectures),
        parameters=sum(t.count for key, t in tensors.items() if not t.is_buffer and not (twins and key == twins[1])),
        dtype=main_dtype(tensors),
        weights_bytes=sum(file.stat().st_size for file in {t.file for t in tensors.values()}),
        max_length=_max_length(both, folder),
        hidden_size=_first(both, _HIDDEN),
        layers=_first(both, _LAYERS),
        heads=heads,
        kv_heads=_first(both, ("num_key_value_heads", "n_head_kv")) or heads,
        vocab_size=_first(both, ("vocab_size",)),
        labels=_labels(config, architectures),
        image_size=_image_size(config),
        tied_embeddings=config_ties(config) and _first(both, ("vocab_size",)) is not None and _has_head(architectures),
        quantized=str(quantization.get("quant_method", "yes")) if isinstance(quantization, dict) else None,
        revision=revision,
        notes=tuple(notes),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as data.

    Raises:
        ExperimentError: ``bad_model`` if it is missing or not a JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        if (folder / "adapter_config.json").is_file():
            raise _bad("this folder holds an adapter, not a model", "Merge the adapter into its base model first.")
        raise _bad(
            f"{folder.name} has no config.json",
            "Save the model with model.save_pretrained(folder), which writes it.",
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _bad(f"config.json is not valid JSON: {str(error)[:200]}", "Save the model again.") from None
    if not isinstance(config, dict):
        raise _bad("config.json is not a JSON object", "Save the model again with save_pretrained.")
    return config


def wrapper_prefix(tensors: dict[str, Stored]) -> str | None:
    """The prefix that a training wrapper left on all names, or None."""
    for prefix in WRAPPERS:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return prefix
    return None


def _model_type(config: dict[str, Any], folder: Path) -> str:
    from experiments.catalog import nearest

    model_type = config.get("model_type")
    known = known_model_types()
    if not isinstance(model_type, str) or not model_type:
        raise _bad("config.json has no model_type", "Save the model with save_pretrained, which writes it.")
    if model_type not in known:
        close = nearest(model_type, known)
        code = _remote_code(config) or next((p.name for p in folder.glob("modeling_*.py")), None)
        carried = f"; the folder's own code ({code}) is never run" if code else ""
        raise _bad(
            f"model_type {model_type!r} is unknown to the installed transformers {installed_version()}{carried}",
            f"{len(known)} types are supported"
            + (f", the nearest is {close!r}" if close else "")
            + "; if the type is newer than this release, update transformers.",
        )
    return model_type


def _remote_code(config: dict[str, Any]) -> str | None:
    auto_map = config.get("auto_map")
    if isinstance(auto_map, dict) and auto_map:
        return str(next(iter(auto_map.values())))
    return None


def _first(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if isinstance(value := config.get(name), int) and not isinstance(value, bool):
            return value
    return None


def _max_length(config: dict[str, Any], folder: Path) -> int | None:
    """Tokens that fit: the position table or the tokenizer's own limit, whichever is less."""
    limits = []
    positions = _first(config, _LENGTHS)
    if positions is not None and positions > 0:
        limits.append(positions - 2 if config.get("model_type") in _OFFSET else positions)
    path = folder / "tokenizer_config.json"
    if path.is_file():
        try:
            said = json.loads(path.read_text(encoding="utf-8")).get("model_max_length")
        except (ValueError, AttributeError):
            raise _bad("tokenizer_config.json is not a JSON object", "Save the tokenizer again.") from None
        if isinstance(said, int | float) and 0 < said < _NO_LIMIT:
            limits.append(int(said))
    return min(limits, default=None)


def _labels(config: dict[str, Any], architectures: tuple[str, ...]) -> tuple[str, ...]:
    if not any("Classification" in a for a in architectures):
        return ()
    named = config.get("id2label")
    if isinstance(named, dict) and named and all(str(k).isdigit() for k in named):
        return tuple(str(named[key]) for key in sorted(named, key=int))
    count = config.get("num_labels")
    return tuple(f"LABEL_{i}" for i in range(count if isinstance(count, int) else 2))


def _image_size(config: dict[str, Any]) -> tuple[int, int, int] | None:
    size, channels = config.get("image_size"), config.get("num_channels", 3)
    if isinstance(size, int):
        return int(channels), size, size
    if isinstance(size, list) and len(size) == 2:
        return int(channels), int(size[0]), int(size[1])
    return None


def _has_head(architectures: tuple[str, ...]) -> bool:
    return any(
        a.endswith(("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")) for a in architectures
    )


def _bad(message: str, fix: str) -> ExperimentError:
    return ExperimentError(FailureKind.BAD_MODEL, message, fix=fix, field="model")
