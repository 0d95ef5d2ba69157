"""Does an adapter belong to this base model? One sentence instead of a wall of shape mismatches (FC-027)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch

BASE = "base.json"
_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
#: Values of a tensor that go into a fingerprint, evenly spread.
_VALUES = 65_536


def fingerprint(state: Mapping[str, torch.Tensor]) -> str:
    """Tells base models apart: over names, shapes, types and up to 65,536 evenly spread values of every tensor.

    A tensor that two names share counts once.
    """
    import torch

    from experiments.parts.tied_weights import first_names

    tensors = {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
    first = first_names(tensors)
    total = hashlib.sha256()
    for name in sorted(tensors):
        if first[name] != name:
            continue
        tensor = tensors[name].detach().cpu()
        total.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\n".encode())
        flat = tensor.reshape(-1)
        picked = flat[:: max(1, -(-flat.numel() // _VALUES))].contiguous()
        total.update(picked.view(torch.uint8).numpy().tobytes() if picked.numel() else b"")
    return total.hexdigest()


def check_adapter(module: Any, folder: Path, name: str, made_for: str) -> tuple[str, ...]:
    """Check the adapter in ``folder`` against ``module``, whose fingerprint is ``made_for``; gives warnings.

    Raises:
        ExperimentError: ``bad_model`` if a shape differs from what the base and the adapter's own config say, if it
            has weights for a layer that the base lacks, or if it was trained on other weights of the same shapes.
    """
    from safetensors import safe_open

    from experiments.parts.linear_layers import linear_layers

    config = json.loads((folder / _CONFIG).read_text())
    with safe_open(folder / _TENSORS, framework="numpy") as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - not a mapping
    sizes = {layer.name: tuple(layer.weight.shape) for layer in linear_layers(module)[0]}
    base = _named_base(folder, config)
    wrong: list[str] = []
    for key, found in sorted(shapes.items()):
        layer, _, matrix = key.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if matrix not in ("lora_A", "lora_B"):
            continue
        if layer not in sizes:
            raise _misfit(name, base, f"it has weights for {layer}, which this base model does not have")
        rank = _rank(config, layer)
        out, into = sizes[layer]
        expected = (rank, into) if matrix == "lora_A" else (out, rank)
        if found == expected:
            continue
        at = 0 if matrix == "lora_A" else 1
        if found[at] != rank and found[1 - at] == expected[1 - at]:
            wrong.append(f"{_CONFIG} says rank {rank}, but {layer}.{matrix} is {_by(found)} (rank {found[at]})")
        else:
            wrong.append(f"{layer}.{matrix} is {_by(found)}, {_by(expected)} is expected")
    if wrong:
        more = f" ({len(wrong)} of {len(shapes)} tensors differ)" if len(wrong) > 1 else ""
        raise _misfit(name, base, wrong[0] + more)
    recorded = _recorded(folder)
    if recorded is None:
        return (f"adapter {name!r} does not say which weights it was trained on; it names its base {base!r}",)
    if recorded != made_for:
        raise _misfit(name, base, "its base model has the same shapes as this one but other weights")
    return ()


def _rank(config: Mapping[str, Any], layer: str) -> int:
    import re

    for pattern, rank in (config.get("rank_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return int(rank)
    return int(config["r"])


def _named_base(folder: Path, config: Mapping[str, Any]) -> str:
    note = folder / BASE
    named = json.loads(note.read_text()).get("base") if note.is_file() else None
    return str(named or config.get("base_model_name_or_path") or "unknown")


def _recorded(folder: Path) -> str | None:
    note = folder / BASE
    return json.loads(note.read_text()).get("fingerprint") if note.is_file() else None


def _misfit(name: str, base: str, why: str) -> ExperimentError:
    return ExperimentError(
        FailureKind.BAD_MODEL,
        f"adapter {name!r} (trained on {base}) does not fit: {why}",
        fix=f"Use it with the base model it was trained on ({base}), or train it again on this one.",
    )


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
