"""What every runtime's decoder shares: positions, and what is timed in a greedy generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy.typing as npt


def position_ids(attention_mask: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Position of each token in its own sequence, (batch, length) int64; padding gets 0.

    With it, left and right padding give the same logits for the real tokens as no padding at all.
    """
    positions = np.cumsum(attention_mask, axis=1, dtype=np.int64) - 1
    return np.where(attention_mask > 0, positions, 0)


def check_prompt(input_ids: npt.NDArray[np.int64], new_tokens: int, max_length: int | None) -> None:
    """Refuse prompts that no decoder can continue.

    Raises:
        ExperimentError: ``unsupported`` if there is no prompt, no token is asked for or the window is too short.
    """
    if input_ids.ndim != 2 or 0 in input_ids.shape:
        message = f"prompts must be (batch, length) with at least one token, got shape {input_ids.shape}"
        raise ExperimentError(FailureKind.UNSUPPORTED, message, field="workload.sequence_length")
    if new_tokens < 1:
        raise ExperimentError(
            FailureKind.UNSUPPORTED, f"new_tokens must be at least 1, got {new_tokens}", field="workload.new_tokens"
        )
    needed = input_ids.shape[1] + new_tokens
    if max_length is not None and needed > max_length:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"prompt and new tokens need {needed} positions, the model has {max_length}",
            fix="Lower workload.sequence_length or workload.new_tokens.",
            field="workload.sequence_length",
        )


def max_positions(config: dict[str, object]) -> int | None:
    """The longest sequence that a config.json allows, or None if it doesn't say."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return None
