"""How a torch model is saved and opened: config.json and safetensors, no pickle anywhere.

A model with integer layers is saved as their codes and scales plus ``quantization_config.json``, and is rebuilt on
load; everything else is what Hugging Face's own loader reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.records import ExperimentError, FailureKind

WEIGHTS = "model.safetensors"
QUANTIZATION = "quantization_config.json"
METHOD = "dynamic-int8-linear"


def save_module(module: Any, folder: Path) -> None:
    """Write ``config.json`` and the weights of ``module``; a tied tensor is written once.

    Raises:
        ExperimentError: ``bad_model`` if config and tensors contradict each other about a tie.
    """
    from experiments.parts.quantized_linear import DynamicInt8Linear
    from experiments.parts.tied_weights import settle_ties

    settle_ties(module)
    integer = {name: child for name, child in module.named_modules() if isinstance(child, DynamicInt8Linear)}
    if integer:
        _save_integer(module, folder, integer)
    else:
        module.save_pretrained(folder, safe_serialization=True)


def load_module(folder: Path, device: str) -> Any:
    """The model in ``folder`` as it was saved, in eval mode, on ``device``. Never contacts a hub.

    Raises:
        ExperimentError: ``bad_model`` naming what is missing or does not fit.
    """
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
    quantization = folder / QUANTIZATION
    if quantization.is_file():
        module = _load_integer(architecture, folder, json.loads(quantization.read_text()))
    else:
        module = _load_plain(architecture, folder)
    return module.eval().to(device)


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


def _save_integer(module: Any, folder: Path, integer: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    from experiments.parts.tied_weights import tied_names, unique_tensors

    tensors = {name: tensor.contiguous() for name, tensor in unique_tensors(module).items()}
    layers = {}
    for name, layer in integer.items():
        for part, tensor in layer.saved().items():
            tensors[f"{name}.{part}"] = tensor.contiguous()
        layers[name] = {"reduce_range": layer.reduce_range}
    module.config.architectures = [type(module).__name__]
    if module.dtype is not None:
        module.config.dtype = module.dtype
    module.config.save_pretrained(folder)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    data = {"version": 1, "method": METHOD, "layers": layers, "ties": tied_names(module)}
    (folder / QUANTIZATION).write_text(json.dumps(data, indent=1) + "\n")


def _load_integer(architecture: Any, folder: Path, quantization: dict[str, Any]) -> Any:
    from safetensors.torch import load_file
    from transformers.modeling_utils import no_init_weights

    from experiments.parts.linear_layers import swap
    from experiments.parts.quantized_linear import DynamicInt8Linear

    if quantization.get("method") != METHOD or quantization.get("version") != 1:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"{QUANTIZATION} of '{folder.name}' is {quantization.get('method')!r} "
            f"version {quantization.get('version')!r}, which this engine does not know",
            fix="Build the artifact again with this version.",
        )
    tensors = load_file(folder / WEIGHTS)
    config = architecture.config_class.from_pretrained(folder, local_files_only=True)
    # Weights are neither initialised nor touched, so the wide layers that are swapped out never become resident.
    with no_init_weights():
        module = architecture._from_config(config, dtype=config.dtype)
    try:
        for name, settings in quantization["layers"].items():
            layer = DynamicInt8Linear(
                tensors.pop(f"{name}.weight_int8"),
                tensors.pop(f"{name}.weight_scale"),
                tensors.pop(f"{name}.bias", None),
                bool(settings["reduce_range"]),
            )
            swap(module, name, layer)
    except (KeyError, AttributeError) as error:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"{WEIGHTS} of '{folder.name}' does not hold the integer layers that {QUANTIZATION} lists: {error}",
            fix="Build the artifact again.",
        ) from error
    for alias, name in quantization["ties"].items():
        if name in tensors:
            tensors[alias] = tensors[name]
    missing, unexpected = module.load_state_dict(tensors, strict=False, assign=True)
    missing = _drop_absent_pooler(module, missing)
    if missing or unexpected:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"{WEIGHTS} of '{folder.name}' does not fit {architecture.__name__}: "
            f"{len(missing)} tensors missing, {len(unexpected)} unexpected, first {(missing or unexpected)[0]}",
            fix="Build the artifact again.",
        )
    module.tie_weights()
    return module
