"""Swaps layers with 2:4 weights for ones that store and multiply only the weights that stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.records import Label, StepEffect

#: The shapes that torch's kernels take in half precision: outputs and inputs are multiples of these.
ROWS, COLUMNS = 32, 64


def has_kernel() -> bool:
    """Whether this process sees a GPU with sparse tensor cores."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0))


def pack_layers(module: Any, keep: Sequence[str], effect: StepEffect) -> tuple[Any, StepEffect]:
    """Pack every pruned layer whose shape the kernel takes; ``effect`` is what pruning ``module`` said.

    A layer of another shape stays a mask and is named in the warnings.
    """
    from experiments.parts.block_layers import block_layers
    from experiments.parts.calibrated_pruner import names_in_words
    from experiments.parts.linear_layers import swap
    from experiments.parts.masks import two_of_four
    from experiments.parts.sparse_2_4_linear import Sparse24Linear

    layers, _ = block_layers(module, keep)
    masks = [layer for layer in layers if layer.weight.shape[0] % ROWS or layer.weight.shape[1] % COLUMNS]
    other = {layer.name for layer in masks}
    for layer in layers:
        if layer.name not in other:
            stays = ~two_of_four(layer.weight.detach().abs())
            swap(module, layer.name, Sparse24Linear.packed(layer.weight, stays, layer.bias))
    packed = len(layers) - len(masks)
    if not packed:
        why = f"no layer has a shape that the sparse kernel takes (multiples of {ROWS} x {COLUMNS}): a mask"
        return module, effect.model_copy(update={"warnings": (*effect.warnings, why)})
    left = (
        (f"{names_in_words(sorted(other))}: masked, the kernel takes multiples of {ROWS} x {COLUMNS}",) if other else ()
    )
    return module, effect.model_copy(
        update={
            "summary": f"{effect.summary}; {packed} layers packed in float16 for the sparse kernel",
            "label": Label.PACKED,
            "zeros": sum(int((layer.weight == 0).sum()) for layer in masks),
            "warnings": (*effect.warnings, *left),
        }
    )
