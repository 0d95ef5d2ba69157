"""Opens a model with packed layers. Its source is the body of an artifact's ``load.py``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers.modeling_utils import no_init_weights

from experiments.parts.packed_layer import PackedLayer


def packed_model(folder: Path, kinds: Mapping[str, type[PackedLayer]]) -> torch.nn.Module:
    """The model in ``folder``, on the CPU and in eval mode.

    Args:
        folder: holds config.json, model.safetensors and quantization_config.json.
        kinds: method name -> class of its layers.

    Raises:
        ValueError: naming the tensors that are missing or fit nowhere.
    """
    description = json.loads((folder / "quantization_config.json").read_text())
    architecture = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    config = architecture.config_class.from_pretrained(folder, local_files_only=True)
    tensors = load_file(folder / "model.safetensors")
    for name, entry in description["layers"].items():
        for part in entry["tensors"] if kinds[entry["method"]].in_place else ():
            stored = description["ties"].get(f"{name}.{part}", f"{name}.{part}")
            if stored in tensors:
                tensors[stored] = tensors[stored].clone()
    for alias, name in description["ties"].items():
        if name not in tensors:
            raise ValueError(f"there is no tensor {name}, which {alias} shares")
        tensors[alias] = tensors[name]
    # Weights are neither initialised nor touched, so the wide layers that are swapped out never become resident.
    with no_init_weights():
        module: torch.nn.Module = architecture._from_config(config, dtype=config.dtype)
    for name, entry in description["layers"].items():
        lost = [part for part in entry["tensors"] if f"{name}.{part}" not in tensors]
        if lost:
            raise ValueError(f"there is no tensor {name}.{lost[0]}")
        parts = {part: tensors.pop(f"{name}.{part}") for part in entry["tensors"]}
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, kinds[entry["method"]].rebuilt(parts, entry["settings"]))
    missing, unexpected = module.load_state_dict(tensors, strict=False, assign=True)
    if any(name.startswith("pooler.") for name in missing):
        module.pooler = None  # the saved model had none; the class makes a random one
        missing = [name for name in missing if not name.startswith("pooler.")]
    if missing or unexpected:
        raise ValueError(
            f"the tensors do not fit {architecture.__name__}: {len(missing)} missing, {len(unexpected)} unexpected, "
            f"first {(missing or unexpected)[0]}"
        )
    module.tie_weights()
    return module.eval()
