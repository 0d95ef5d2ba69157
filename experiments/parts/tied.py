"""The one rule for tied weights: a weight used in two places is one weight, counted once.

In a file, an output head is tied if config.json says so and the head is absent or equal to the input embedding. If
the config says tied while the file holds two different tensors, loading would silently drop one of them: refused.
In a module, parameters are tied if they are the same object or share their storage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from experiments.parts.architectures import ties_by_default
from experiments.parts.weights import Stored, same_values
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch

_INPUTS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "shared.weight", "tok_embeddings.weight")
_OUTPUTS = ("lm_head.weight", "embed_out.weight", "decoder.weight", "output.weight")


def config_ties(config: dict[str, Any]) -> bool:
    """Whether input embedding and output head are one weight: config.json's word, else the type's own default."""
    text = config.get("text_config")
    nested = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    said = config.get("tie_word_embeddings", nested)
    return bool(said) if said is not None else ties_by_default(str(config.get("model_type")))


def stored_twins(tensors: dict[str, Stored], config: dict[str, Any]) -> tuple[str, str] | None:
    """(kept, repeated) if the file stores a tied head beside its embedding, or None.

    Raises:
        ExperimentError: ``bad_model`` if config.json says tied but the two tensors differ.
    """
    if not config_ties(config):
        return None
    embedding = next((name for name in tensors if name.endswith(_INPUTS)), None)
    head = next((name for name in tensors if name.endswith(_OUTPUTS) and name != embedding), None)
    if embedding is None or head is None or tensors[embedding].shape != tensors[head].shape:
        return None
    if not same_values(tensors[embedding], tensors[head]):
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"embeddings differ, cannot share: config.json says tie_word_embeddings, but {embedding!r} and {head!r} "
            "hold different values",
            fix="Set tie_word_embeddings to false in config.json, or remove the tensor that is wrong.",
            field="model",
        )
    return embedding, head


def tied_groups(module: torch.nn.Module) -> list[tuple[str, ...]]:
    """Names of parameters that share one storage, each group in the module's order; untied ones are left out."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(_identity(parameter), []).append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]


def parameter_count(module: torch.nn.Module) -> int:
    """Parameters of a module, tied ones counted once; buffers are not parameters."""
    return sum(tensor.numel() for tensor in unique(module.parameters()))


def tensor_bytes(module: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers, shared storages counted once."""
    tensors = unique([*module.parameters(), *module.buffers()])
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def unique(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without repetitions of one storage."""
    return list({_identity(tensor): tensor for tensor in tensors}.values())


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return ("object", id(tensor))
    return (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape))
