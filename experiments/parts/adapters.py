"""Adapters beside a base model, in memory and in an artifact: the base's safetensors and ``adapter/`` in PEFT's format.

One adapter lies in ``adapter/`` itself, several in ``adapter/<name>/``. Beside each, ``base.json`` names the base model
that it was trained on. A module with adapters is the base model's own class, with PEFT's layers inside.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from experiments.parts.adapter_check import BASE, check_adapter, fingerprint

if TYPE_CHECKING:
    from peft import PeftModel

FOLDER = "adapter"
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_KEY = "_adapters"


def hold(model: PeftModel) -> Any:
    """The base module of ``model``, which remembers its adapters."""
    module = model.get_base_model()
    # Not a submodule: PEFT's wrapper holds the base, and the base must not hold the wrapper's tensors again.
    module.__dict__[_KEY] = model
    return module


def held(module: Any) -> PeftModel | None:
    """The adapters that ``module`` was given, or None."""
    model: PeftModel | None = module.__dict__.get(_KEY)
    return model


def names_of(model: PeftModel) -> tuple[str, ...]:
    """Its adapters, in the order in which they were added."""
    return tuple(model.peft_config)


def base_state(module: Any) -> dict[str, torch.Tensor]:
    """The state of the base model by its own names, as if there were no adapters."""
    model = held(module)
    prefix = model.base_model.prefix if model is not None else None
    state = module.state_dict()
    if prefix is None:
        return dict(state)
    own = {name: tensor for name, tensor in state.items() if f".{prefix}" not in f".{name}"}
    return {name.replace(".base_layer.", "."): tensor for name, tensor in own.items()}


def save_with_adapters(module: Any, folder: Path) -> None:
    """Write the base model as if it had no adapters, and the adapters beside it."""
    model = held(module)
    assert model is not None, "the caller has looked"
    state = base_state(module)
    module.save_pretrained(folder, state_dict=state, safe_serialization=True)
    made_for = fingerprint(state)
    names = names_of(model)
    for name in names:
        target = folder / FOLDER if len(names) == 1 else folder / FOLDER / name
        target.mkdir(parents=True)
        save_adapter(model, name, target, made_for)


def save_adapter(model: PeftModel, name: str, folder: Path, made_for: str) -> None:
    """Write one adapter into ``folder``, in PEFT's format, and ``base.json`` beside it."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    # Asked for embeddings, PEFT would look for the base model's config on a hub.
    tensors = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    save_file(
        {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()},
        folder / TENSORS,
        metadata={"format": "pt"},
    )
    config = model.peft_config[name]
    inference, config.inference_mode = config.inference_mode, True
    config.save_pretrained(str(folder))
    config.inference_mode = inference
    written = json.loads((folder / CONFIG).read_text())
    written["target_modules"] = sorted(written["target_modules"])  # a set in memory: its order is chance
    (folder / CONFIG).write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    note = {"base": config.base_model_name_or_path, "fingerprint": made_for}
    (folder / BASE).write_text(json.dumps(note, indent=1) + "\n")


def adapter_folders(folder: Path) -> dict[str, Path]:
    """Name -> folder of every adapter in the artifact ``folder``, in order; empty if it has none."""
    root = folder / FOLDER
    if (root / CONFIG).is_file():
        return {"default": root}
    below = sorted(root.iterdir()) if root.is_dir() else []
    return {path.name: path for path in below if (path / CONFIG).is_file()}


def with_adapters(module: Any, folders: dict[str, Path]) -> Any:
    """``module`` with the adapters of ``folders``; the first one is active. Never contacts a hub.

    Raises:
        ExperimentError: ``bad_model`` if an adapter does not fit ``module`` or was trained on another base.
    """
    from peft import PeftModel

    made_for = fingerprint(base_state(module))
    for name, folder in folders.items():
        check_adapter(module, folder, name, made_for)
    model: Any = None
    for name, folder in folders.items():
        if model is None:
            model = PeftModel.from_pretrained(module, folder, adapter_name=name, autocast_adapter_dtype=False)
        else:
            model.load_adapter(folder, adapter_name=name, autocast_adapter_dtype=False)
    first = next(iter(folders))
    model.set_adapter(first)
    return hold(model).eval()
