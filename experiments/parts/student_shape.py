"""How large a student is: which layers of its teacher it keeps, and what widths whole heads allow. Torch-free."""

from __future__ import annotations

from experiments.parts.block_anatomy import ANATOMIES, head_units
from experiments.protocols import ModelFacts


def chosen_layers(wanted: int | tuple[int, ...] | None, layers: int) -> tuple[int, ...] | str:
    """The teacher's layers (counted from 0) that a student is made of, or one sentence why it can't be.

    A count is spread evenly, the first and the last layer among them; None is half, rounded up.
    """
    if isinstance(wanted, tuple):
        if wanted[-1] >= layers:
            return (
                f"the student is larger than its teacher: it asks for layer {wanted[-1]}, the last one is {layers - 1}"
            )
        return wanted
    count = -(-layers // 2) if wanted is None else wanted
    if count > layers:
        return f"the student is larger than its teacher: {count} layers, the model has {layers}"
    if count == 1:
        return (0,)
    return tuple(round(index * (layers - 1) / (count - 1)) for index in range(count))


def width_units(facts: ModelFacts) -> int | None:
    """Of how many equal parts (heads, or groups of heads that share a key-value head) a width consists.

    None where a narrower model of this type can't be cut.
    """
    if facts.model_type not in ANATOMIES or not facts.heads:
        return None
    return head_units(facts.heads, facts.kv_heads or facts.heads)
