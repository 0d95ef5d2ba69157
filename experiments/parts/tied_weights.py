"""The one rule for tied weights (docs/measurement.md): a tensor that two names share is one tensor.

It is counted once in every size, saved once, cast once, and its tie survives saving and loading. What is tied is told
by the storages, never by a flag in the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch


def _where(tensor: torch.Tensor) -> tuple[str, int, int]:
    storage = tensor.untyped_storage()
    return (str(tensor.device), storage.data_ptr(), storage.nbytes())


def unique_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Name -> parameter or persistent buffer, each shared tensor once under its first name in sorted order."""
    seen: set[tuple[str, int, int]] = set()
    unique: dict[str, torch.Tensor] = {}
    tensors = {name: value for name, value in module.state_dict().items() if hasattr(value, "untyped_storage")}
    for name in sorted(tensors):
        where = _where(tensors[name])
        if where[1] == 0 or where not in seen:  # tensors without storage (empty, meta) share nothing
            seen.add(where)
            unique[name] = tensors[name]
    return unique


def first_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Name -> the first name, in sorted order, of the same tensor (often itself)."""
    seen: dict[tuple[str, int, int], str] = {}
    first = {}
    for name in sorted(tensors):
        where = _where(tensors[name])
        first[name] = name if where[1] == 0 else seen.setdefault(where, name)
    return first


def tied_names(module: torch.nn.Module) -> dict[str, str]:
    """Name -> the first name of the same tensor, for all names that are not the first."""
    tensors = {name: value for name, value in module.state_dict().items() if hasattr(value, "untyped_storage")}
    return {name: first for name, first in first_names(tensors).items() if first != name}


def unique_bytes(module: torch.nn.Module) -> int:
    """Bytes of all unique storages behind parameters and buffers, packed layers included."""
    from experiments.parts.packed_layers import packed_layers

    storages: dict[tuple[str, int, int], int] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        storages[_where(tensor)] = tensor.untyped_storage().nbytes()
    return sum(storages.values()) + sum(layer.hidden_bytes() for layer in packed_layers(module).values())


def parameter_count(module: torch.nn.Module) -> int:
    """Parameters of a module and those that its packed layers stand for; shared ones once, buffers not at all."""
    from experiments.parts.packed_layers import packed_layers

    plain: int = sum(parameter.numel() for parameter in {_where(p): p for p in module.parameters()}.values())
    packed: dict[object, int] = {}
    for layer in packed_layers(module).values():
        codes = next(iter(layer.buffers(recurse=False)), None)
        packed.setdefault(id(layer) if codes is None else _where(codes), layer.parameter_count())
    return plain + sum(packed.values())


def embeddings_tied(module: Any) -> bool:
    """True if the output head shares its tensor with the input embedding."""
    pair = _embedding_pair(module)
    return pair is not None and _where(pair[0]) == _where(pair[1])


def settle_ties(module: Any) -> None:
    """Make ``config.tie_word_embeddings`` say what the tensors say, before a model is saved or exported.

    A config that claims a tie over two different tensors would make the next load overwrite one of them.

    Raises:
        ExperimentError: ``bad_model`` if the config claims a tie and the two tensors differ (FC-021).
    """
    import torch

    pair = _embedding_pair(module)
    if pair is None:
        return
    config = module.config.get_text_config() if hasattr(module.config, "get_text_config") else module.config
    tied = _where(pair[0]) == _where(pair[1])
    if getattr(config, "tie_word_embeddings", False) and not tied:
        if pair[0].shape != pair[1].shape or not torch.equal(pair[0], pair[1]):
            raise ExperimentError(
                FailureKind.BAD_MODEL,
                "embeddings differ, cannot share: config.json says tie_word_embeddings=true, but the input embedding "
                "and the output head are two different tensors",
                fix="Set tie_word_embeddings to false in config.json, or save the model with one shared tensor.",
            )
        module.tie_weights()
    elif tied:
        config.tie_word_embeddings = True
        module.config.tie_word_embeddings = True


def _embedding_pair(module: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Weights of the input embedding and of the output head, where the model has both."""
    try:
        into, out = module.get_input_embeddings(), module.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    first, second = getattr(into, "weight", None), getattr(out, "weight", None)
    return None if first is None or second is None else (first, second)
