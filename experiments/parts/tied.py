"""The rule for tied weights as it applies to files, without torch; :mod:`tied_weights` applies it to modules.

An output head is tied if config.json says so and the head is absent or equal to the input embedding. If the config
says tied while the file holds two different tensors, loading would silently drop one of them: refused.
"""

from __future__ import annotations

from typing import Any

from experiments.parts.architectures import ties_by_default
from experiments.parts.weights import Stored, same_values
from experiments.records import ExperimentError, FailureKind

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
