"""Narrows every stage of a ResNet by one share, so that ``hidden_sizes`` in config.json says it."""

from __future__ import annotations

import re
from typing import Any

from experiments.parts.block_anatomy import remaining_neurons
from experiments.parts.structured import Removed

#: How much narrower the inner convolutions of a bottleneck are (transformers' ``ResNetBottleNeckLayer``).
REDUCTION = 4
_INNER = re.compile(r"\.layers\.\d+\.layer\.[01]\.convolution$")


def prune_resnet(module: Any, amount: float, multiple: int) -> Removed:
    """Remove a share ``amount`` of the channels of every stage and of the stem, in place.

    Raises:
        ExperimentError: ``unsupported`` if the model's layers can't be followed.
    """
    import torch

    from experiments.parts.channel_pruning import prune_channels

    config = module.config
    bottleneck = config.layer_type == "bottleneck"

    def stage(width: int) -> int:
        if not bottleneck:
            return remaining_neurons(width, amount, multiple)
        return REDUCTION * remaining_neurons(width // REDUCTION, amount, max(1, multiple // REDUCTION))

    def remaining(name: str, width: int) -> int:
        inner = bottleneck and _INNER.search(name)
        return stage(width * REDUCTION) // REDUCTION if inner else stage(width)

    before = list(config.hidden_sizes)
    prune_channels(module, torch.zeros(1, config.num_channels, 64, 64), remaining)
    config.embedding_size = stage(config.embedding_size)
    config.hidden_sizes = [stage(width) for width in before]
    reason = f"{amount:.0%} of {before} channels is less than one" if config.hidden_sizes == before else ""
    return Removed("channels", sum(before), sum(config.hidden_sizes), reason, "all stages")
