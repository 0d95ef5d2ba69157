"""Which linear layers an adapter goes to: the attention's projections, or those that a user names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.parts.layer_patterns import matching
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    from experiments.parts.linear_layers import LinearLayer

#: Names of attention projections by model type, for what a form offers; what a model has is told by its modules.
_USUAL: dict[str, tuple[str, ...]] = {
    "bert": ("query", "key", "value", "attention.output.dense"),
    "roberta": ("query", "key", "value", "attention.output.dense"),
    "electra": ("query", "key", "value", "attention.output.dense"),
    "vit": ("query", "key", "value", "attention.output.dense"),
    "deit": ("query", "key", "value", "attention.output.dense"),
    "distilbert": ("q_lin", "k_lin", "v_lin", "out_lin"),
    "gpt2": ("attn.c_attn", "attn.c_proj"),
    "gpt_neox": ("query_key_value", "attention.dense"),
    "phi3": ("qkv_proj", "o_proj"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj"),
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"), ("q_proj", "k_proj", "v_proj", "o_proj")
    ),
}


def usual_targets(model_type: str) -> tuple[str, ...]:
    """Names of a type's attention projections, or none if they are not known beforehand. Torch-free."""
    return _USUAL.get(model_type, ())


def targets(module: Any, patterns: Sequence[str]) -> list[LinearLayer]:
    """The layers that ``patterns`` name (all of the attention's if there are none), in the model's order.

    Raises:
        ExperimentError: ``unsupported`` if a pattern names no linear layer, even where others do (FC-085), or one that
            shares its tensor with an embedding; if no pattern is given and the model has no attention.
    """
    from experiments.parts.linear_layers import linear_layers
    from experiments.parts.tied_weights import tied_names

    layers, _ = linear_layers(module)
    names = [layer.name for layer in layers]
    tied = tied_names(module)
    shared = {**tied, **{first: alias for alias, first in tied.items()}}
    if not patterns:
        chosen = {name for name in names if any("attn" in part or "attention" in part for part in name.split("."))}
        if not chosen:
            raise ExperimentError(
                FailureKind.UNSUPPORTED,
                "the model has no layer whose name says attention, so targets must be named",
                fix=f"Its linear layers are: {_listed(names)}.",
                field="recipe.targets",
            )
    else:
        chosen = set()
        for pattern in patterns:
            hits = matching(pattern, names)
            if not hits:
                raise _unmatched(pattern, names)
            chosen.update(hits)
    for name in names:
        if name in chosen and (other := shared.get(f"{name}.weight")):
            raise ExperimentError(
                FailureKind.UNSUPPORTED,
                f"{name} can't take an adapter: it shares its tensor with {other}, which would change with it",
                fix="Leave it out of targets.",
                field="recipe.targets",
            )
    return [layer for layer in layers if layer.name in chosen]


def _unmatched(pattern: str, names: Sequence[str]) -> ExperimentError:
    endings = _endings(names)
    close = difflib.get_close_matches(pattern, [*endings, *names], n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return ExperimentError(
        FailureKind.UNSUPPORTED,
        f"'{pattern}' in targets matches no module{hint}",
        fix=f"Linear layers of this model end in: {', '.join(endings)}." if names else "It has no linear layers.",
        field="recipe.targets",
        names=list(names)[:1000],
    )


def _endings(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[2] for name in names))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
