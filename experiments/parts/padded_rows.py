"""Token rows of different lengths as one padded batch, the same for judging, calibrating and training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Arrays = dict[str, npt.NDArray[Any]]

#: Model types whose graphs take token_type_ids.
TYPED = frozenset({"bert", "electra", "albert", "deberta", "deberta-v2", "mobilebert", "squeezebert", "convbert"})


def pad_rows(rows: list[list[int]], pad: int, types: list[list[int]] | None) -> Arrays:
    """Right-padded int64 arrays of the rows (batch, longest)."""
    width = max(len(row) for row in rows)
    ids = np.full((len(rows), width), pad, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    arrays = {"input_ids": ids, "attention_mask": mask}
    if types is not None:
        kinds = np.zeros_like(ids)
        for i, row in enumerate(types):
            kinds[i, : len(row)] = row
        arrays["token_type_ids"] = kinds
    return arrays


def pad_id(tokenizer: Tokenizer) -> int:
    """The padding token; without one any token does, since the attention mask hides it from every score."""
    padding = tokenizer.padding
    return int(padding["pad_id"]) if padding else 0
