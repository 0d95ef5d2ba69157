"""One adapter out of several: their weighted sum, exact or of equal rank (FC-087)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

Method = Literal["cat", "linear"]


def combine(model: PeftModel, weights: Mapping[str, float], name: str, method: Method = "cat") -> None:
    """Add adapter ``name`` to ``model``: the sum of other adapters' changes, each times its weight.

    ``cat`` lays the factors side by side: the sum is exact, and the rank is the sum of the ranks. ``linear`` adds the
    factors, each times the root of its weight: the rank stays, and products of one adapter's factor with another's
    come in (as in PEFT's method of this name). Each adapter's own scaling (``alpha / r``, or ``alpha / sqrt(r)`` for
    rank-stabilised ones) is part of the sum; the new adapter's scaling is 1, whatever its rank.

    Raises:
        ExperimentError: ``unsupported`` for an adapter that is more than a low-rank product (DoRA, trained biases,
            modules saved whole), an unknown one, or unequal ranks with ``linear``.
    """
    from peft import LoraConfig

    for other in weights:
        _check_plain(model, other)
    layers = {
        key: layer
        for key, layer in model.get_base_model().named_modules()
        if hasattr(layer, "lora_A") and any(other in layer.lora_A for other in weights)
    }
    ranks = {key: [layer.r[other] for other in weights if other in layer.lora_A] for key, layer in layers.items()}
    if method == "linear":
        _check_equal(ranks, len(weights))
    made = {key: sum(found) if method == "cat" else found[0] for key, found in ranks.items()}
    first: LoraConfig = model.peft_config[next(iter(weights))]
    most = max(made.values())
    config = LoraConfig(
        r=most,
        lora_alpha=most,
        target_modules=sorted(layers),
        rank_pattern={_exactly(key): rank for key, rank in made.items() if rank != most},
        alpha_pattern={_exactly(key): rank for key, rank in made.items() if rank != most},
        fan_in_fan_out=first.fan_in_fan_out,
        base_model_name_or_path=first.base_model_name_or_path,
        task_type=first.task_type,
    )
    model.add_adapter(name, config)
    with torch.no_grad():
        for key, layer in layers.items():
            a, b = _factors(layer, weights, method)
            if tuple(layer.lora_A[name].weight.shape) != tuple(a.shape) or layer.scaling[name] != 1:
                raise AssertionError(f"{key} was made with rank {layer.r[name]} and scaling {layer.scaling[name]}")
            layer.lora_A[name].weight.copy_(a)
            layer.lora_B[name].weight.copy_(b)


def _factors(layer: Any, weights: Mapping[str, float], method: Method) -> tuple[torch.Tensor, torch.Tensor]:
    """(rank, in) and (out, rank) of the combined adapter at one layer."""
    parts = [
        (layer.lora_A[other].weight, layer.lora_B[other].weight, weight * layer.scaling[other])
        for other, weight in weights.items()
        if other in layer.lora_A
    ]
    if method == "cat":
        return torch.cat([a for a, _, _ in parts], dim=0), torch.cat([b * share for _, b, share in parts], dim=1)
    rooted = [(a, b, math.sqrt(abs(share)), math.copysign(1, share)) for a, b, share in parts]
    zero = torch.zeros(())
    return sum((a * root for a, _, root, _ in rooted), zero), sum(
        (b * root * sign for _, b, root, sign in rooted), zero
    )


def _check_plain(model: PeftModel, name: str) -> None:
    if name not in model.peft_config:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"there is no adapter {name!r}; there are {', '.join(map(repr, model.peft_config))}",
        )
    config: Any = model.peft_config[name]
    more = {
        "DoRA magnitudes": getattr(config, "use_dora", False),
        "trained biases": getattr(config, "bias", "none") != "none" or getattr(config, "lora_bias", False),
        "modules saved whole": bool(getattr(config, "modules_to_save", None)),
    }
    for what, has in more.items():
        if has:
            raise ExperimentError(
                FailureKind.UNSUPPORTED,
                f"adapter {name!r} can't be combined: it has {what}, whose weighted sum is not that of the answers",
                fix="Merge it into its base model instead.",
            )


def _check_equal(ranks: Mapping[str, list[int]], count: int) -> None:
    for key, found in ranks.items():
        if len(set(found)) > 1 or len(found) < count:
            told = " and ".join(map(str, found)) if len(found) == count else "not in all of them"
            raise ExperimentError(
                FailureKind.UNSUPPORTED,
                f"adapters of unequal ranks can't be combined by 'linear': at {key} they are {told}",
                fix="Use method 'cat', which allows it.",
            )


def _exactly(name: str) -> str:
    """A pattern, as PEFT reads them, that means this layer alone and none whose name ends like it."""
    return f"^{re.escape(name)}"
