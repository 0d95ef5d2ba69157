"""Takes whole blocks out of a model, and makes its config and its caches agree."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from experiments.records import ExperimentError, FailureKind

#: Settings in config.json that hold one value a block.
_PER_BLOCK = ("layer_types", "no_rope_layers", "mlp_layer_types", "layers_block_type")


def drop_blocks(module: Any, numbers: Collection[int]) -> None:
    """Remove the blocks ``numbers`` (counted from 0) in place; the remaining ones are numbered anew.

    Raises:
        ExperimentError: ``unsupported`` if the model is not one stack of blocks, or computes by a block's number.
    """
    import torch

    from experiments.parts.block_list import block_list, require_described, text_config
    from experiments.parts.linear_layers import swap

    name, blocks = block_list(module)
    config = text_config(module)
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            "this model scales attention by the number of the block (scale_attn_by_inverse_layer_idx), so dropping a "
            "block would change all later ones",
            fix="Choose another technique for this model.",
            field="recipe",
        )
    stay = [number for number in range(len(blocks)) if number not in numbers]
    for new, old in enumerate(stay):
        for part in blocks[old].modules():
            if isinstance(getattr(part, "layer_idx", None), int):
                part.layer_idx = new  # where the part's keys and values lie in the cache
    for setting in _PER_BLOCK:
        values = getattr(config, setting, None)
        if isinstance(values, list) and len(values) == len(blocks):
            setattr(config, setting, [values[old] for old in stay])
    if getattr(config, "pruned_heads", None):
        config.pruned_heads = {new: config.pruned_heads[o] for new, o in enumerate(stay) if o in config.pruned_heads}
    swap(module, name, torch.nn.ModuleList(blocks[old] for old in stay))
    config.num_hidden_layers = len(stay)
    require_described(module)
