"""How a torch model is saved and opened: config.json and safetensors, no pickle anywhere.

A model with packed layers (``parts/packed_layers.py``) is saved as their codes and scales plus
``quantization_config.json``, and is rebuilt on load, here or by the ``load.py`` beside it; adapters lie beside their
base model (``parts/adapters.py``); everything else is what Hugging Face's own loader reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.records import ExperimentError, FailureKind

WEIGHTS = "model.safetensors"
QUANTIZATION = "quantization_config.json"
#: Of what :func:`_save_packed` writes.
VERSION = 2


def save_module(module: Any, folder: Path) -> None:
    """Write ``config.json`` and the weights of ``module``; a tied tensor is written once.

    Raises:
        ExperimentError: ``bad_model`` if config and tensors contradict each other about a tie.
    """
    from experiments.parts.adapters import held, save_with_adapters
    from experiments.parts.packed_layers import packed_layers
    from experiments.parts.tied_weights import settle_ties

    settle_ties(module)
    packed = packed_layers(module)
    if held(module) is not None:
        save_with_adapters(module, folder)
    elif packed:
        _save_packed(module, folder, packed)
    else:
        module.save_pretrained(folder, safe_serialization=True)


def load_module(folder: Path, device: str) -> Any:
    """The model in ``folder`` as it was saved, in eval mode, on ``device``. Never contacts a hub.

    Raises:
        ExperimentError: ``bad_model`` naming what is missing or does not fit.
    """
    from experiments.parts.adapters import adapter_folders, with_adapters

    module, adapters = base_module(folder), adapter_folders(folder)
    if adapters:
        module = with_adapters(module, adapters)
    return module.eval().to(device)


def base_module(folder: Path) -> Any:
    """The model in ``folder`` without the adapters that lie beside it, on the CPU. Raises as :func:`load_module`."""
    import transformers

    from experiments.parts.artifact_card import read_config

    names = read_config(folder).get("architectures") or ["none"]
    architecture = getattr(transformers, str(names[0]), None)
    if architecture is None:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"transformers {transformers.__version__} has no class {names[0]!r}, which config.json asks for",
            fix="Choose a model whose architecture this version of transformers knows.",
        )
    return _load_packed(folder) if (folder / QUANTIZATION).is_file() else _load_plain(architecture, folder)


def _load_plain(architecture: Any, folder: Path) -> Any:
    module, info = architecture.from_pretrained(
        folder, dtype="auto", local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    info["missing_keys"] = _drop_absent_pooler(module, info["missing_keys"])
    wrong = {key: sorted(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    if wrong:
        key, names = next(iter(wrong.items()))
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"the weights of '{folder.name}' do not fit {architecture.__name__}: "
            f"{len(names)} {key.replace('_', ' ')}, first {names[0]}",
            fix="Build the artifact again.",
            tensors=wrong,
        )
    return module


def _drop_absent_pooler(module: Any, missing: Iterable[str]) -> list[str]:
    """What is missing besides a pooler that the saved model did not have; the class makes a random one, which goes."""
    missing = list(missing)
    if any(name.startswith("pooler.") for name in missing):
        module.pooler = None  # the last hidden states, which are the features here, don't pass through it
    return [name for name in missing if not name.startswith("pooler.")]


def _save_packed(module: Any, folder: Path, packed: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    from experiments.parts.load_script import write_load_script
    from experiments.parts.tied_weights import first_names, tied_names, unique_tensors

    tensors = {name: tensor.contiguous() for name, tensor in unique_tensors(module).items()}
    parts = {name: layer.saved() for name, layer in packed.items()}
    # Packed layers may share codes (a table and the head that reads it), as other layers share weights.
    codes = {f"{name}.{part}": tensor for name, saved in parts.items() for part, tensor in saved.items()}
    first = first_names(codes)
    tensors |= {name: tensor.contiguous() for name, tensor in codes.items() if first[name] == name}
    shared = {name: other for name, other in first.items() if other != name}
    layers = {
        name: {"method": layer.method, "settings": layer.settings(), "tensors": sorted(parts[name])}
        for name, layer in packed.items()
    }
    module.config.architectures = [type(module).__name__]
    if module.dtype is not None:
        module.config.dtype = module.dtype
    module.config.save_pretrained(folder)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    data = {"version": VERSION, "layers": layers, "ties": tied_names(module) | shared}
    (folder / QUANTIZATION).write_text(json.dumps(data, indent=1) + "\n")
    write_load_script(folder, {layer.method for layer in packed.values()})


def _load_packed(folder: Path) -> Any:
    from experiments.parts.packed_layers import packed_kinds
    from experiments.parts.packed_model import packed_model

    description = json.loads((folder / QUANTIZATION).read_text())
    if description.get("version") != VERSION:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"{QUANTIZATION} of '{folder.name}' has version {description.get('version')!r}, this engine reads "
            f"{VERSION}",
            fix="Build the artifact again with this version.",
        )
    try:
        kinds = packed_kinds(entry["method"] for entry in description["layers"].values())
        return packed_model(folder, kinds)
    except (ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"'{folder.name}' does not hold the packed layers that {QUANTIZATION} lists: {error}",
            fix="Build the artifact again.",
        ) from error
