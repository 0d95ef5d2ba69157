"""The list of a model's repeated blocks, and whether config.json describes the model as it stands."""

from __future__ import annotations

import copy
from typing import Any

from experiments.records import ExperimentError, FailureKind


def block_list(module: Any) -> tuple[str, Any]:
    """Dotted name and ``ModuleList`` of the blocks that ``num_hidden_layers`` counts.

    Raises:
        ExperimentError: ``unsupported`` if the model has no such list, or several.
    """
    import torch

    count = getattr(text_config(module), "num_hidden_layers", None)
    found = [
        (name, child)
        for name, child in module.named_modules()
        if isinstance(child, torch.nn.ModuleList) and len(child) == count and len({type(b) for b in child}) == 1
    ]
    outer = [(name, child) for name, child in found if not any(name.startswith(f"{other}.") for other, _ in found)]
    if len(outer) != 1:
        kind = getattr(module.config, "model_type", type(module).__name__)
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"'{kind}' models have {len(outer)} lists of blocks that config.json counts, one is needed",
            fix="Choose a model that is one stack of blocks (an encoder or a decoder).",
            field="recipe",
        )
    return outer[0]


def text_config(module: Any) -> Any:
    """The part of a model's configuration that describes its blocks."""
    config = module.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def require_described(module: Any) -> None:
    """Prove that a model built from ``module.config`` alone has tensors of the same names and shapes.

    Raises:
        ExperimentError: ``unsupported`` naming the first tensor that a plain ``from_pretrained`` would not find.
    """
    from accelerate import init_empty_weights
    from transformers.modeling_utils import no_init_weights

    with no_init_weights(), init_empty_weights():
        bare = type(module)._from_config(copy.deepcopy(module.config))
    made = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    described = {name: tuple(tensor.shape) for name, tensor in bare.state_dict().items()}
    for name in made.keys() | described.keys():
        if getattr(module, "pooler", True) is None and name.startswith("pooler."):
            continue  # a model for features does without it
        if made.get(name) != described.get(name):
            raise ExperimentError(
                FailureKind.UNSUPPORTED,
                f"config.json can't describe the pruned model: {name} is {made.get(name)}, "
                f"a model built from it would have {described.get(name)}",
                fix="Choose another technique for this kind of model.",
                field="recipe",
            )
