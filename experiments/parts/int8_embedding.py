"""An embedding table that is held as 8-bit codes with one scale a row; a lookup widens what it took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from experiments.parts.packed_layer import PackedLayer


class Int8Embedding(PackedLayer):
    """``y = scale[id] * codes[id]``.

    Args:
        codes: int8 (rows, width), in [-127, 127].
        scales: float32 (rows, 1).
        dtype: of the rows that a lookup gives.
    """

    method: ClassVar[str] = "int8-embedding"

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = int(codes.shape[0]), int(codes.shape[1])
        self.dtype = dtype
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(...) ids -> (..., width)."""
        flat = ids.reshape(-1)
        rows = self.codes.index_select(0, flat).to(torch.float32) * self.scales.index_select(0, flat)
        return rows.to(self.dtype).reshape(*ids.shape, self.embedding_dim)

    @property
    def weight(self) -> torch.Tensor:
        """The whole table, widened anew at each call, for models that read it directly."""
        return (self.codes.to(torch.float32) * self.scales).to(self.dtype)

    def saved(self) -> dict[str, torch.Tensor]:
        """``weight_int8`` and ``weight_scale``."""
        return {"weight_int8": self.codes, "weight_scale": self.scales}

    def settings(self) -> dict[str, Any]:
        """See ``PackedLayer``."""
        return {"dtype": str(self.dtype).removeprefix("torch.")}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> Int8Embedding:
        """See ``PackedLayer``."""
        return cls(tensors["weight_int8"], tensors["weight_scale"], getattr(torch, settings["dtype"]))

    def parameter_count(self) -> int:
        """Values of the table."""
        return self.num_embeddings * self.embedding_dim

    def extra_repr(self) -> str:
        """Shape, for ``print(module)``."""
        return f"{self.num_embeddings}, {self.embedding_dim}"
