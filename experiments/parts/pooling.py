"""Hidden states to one embedding a text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def pooled(hidden: npt.NDArray[Any], mask: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Mean over the real tokens, normalised to length 1: (batch, length, width) -> (batch, width)."""
    weights = np.asarray(mask, dtype=np.float32)[:, :, None]
    mean = (hidden * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    normalised: npt.NDArray[np.float32] = mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
    return normalised
