"""A linear layer that stores two of every four weights, and multiplies them with a GPU's sparse tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from experiments.parts.packed_layer import PackedLayer


class Sparse24Linear(PackedLayer):
    """``y = x W^T + b`` in half precision with W in 2:4 form.

    On CUDA the weight becomes torch's semi-structured sparse tensor at the first call; on a CPU, which has no such
    kernel, it is spread out at each call: right, and slow.

    Args:
        values: float16 (out, in / 2), the weights that stay, in order.
        places: uint8 (out, in / 8), four bits for each four weights: the places (0 to 3) of the two that stay.
        bias: float16 (out,) or None.
    """

    method: ClassVar[str] = "sparse-2-4-linear"

    values: torch.Tensor
    places: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, values: torch.Tensor, places: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = int(values.shape[0]), 2 * int(values.shape[1])
        self.register_buffer("values", values, persistent=False)
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self._kernel: Any = None

    @classmethod
    def packed(cls, weight: torch.Tensor, stays: torch.Tensor, bias: torch.Tensor | None) -> Sparse24Linear:
        """The layer of a (out, in) weight of which ``stays`` (bool, two of every four along a row) stay."""
        groups = stays.reshape(len(stays), -1, 4)
        if not bool((groups.sum(2) == 2).all()):
            raise ValueError("two of every four weights must stay")
        places = groups.to(torch.uint8).argsort(dim=2, descending=True, stable=True)[..., :2]
        values = weight.detach().reshape(groups.shape).gather(2, places).reshape(len(weight), -1)
        four = (places[..., 0] | places[..., 1] << 2).to(torch.uint8)
        narrow = None if bias is None else bias.detach().half()
        return cls(values.half().contiguous(), (four[:, 0::2] | four[:, 1::2] << 4).contiguous(), narrow)

    def dense(self) -> torch.Tensor:
        """The float16 (out, in) weight with its zeros."""
        four = torch.stack([self.places & 15, self.places >> 4], dim=2).reshape(self.out_features, -1)
        index = torch.stack([four & 3, four >> 2], dim=2).long()
        spread = torch.zeros(*four.shape, 4, dtype=self.values.dtype, device=self.values.device)
        spread.scatter_(2, index, self.values.reshape(*four.shape, 2))
        return spread.reshape(self.out_features, self.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out) in the dtype of ``x``."""
        if self._kernel is None and self.values.is_cuda:
            self._kernel = torch.sparse.to_sparse_semi_structured(self.dense())
            self.values, self.places = self.values.new_empty(0), self.places.new_empty(0)
        weight = self.dense() if self._kernel is None else self._kernel
        return torch.nn.functional.linear(x.half(), weight, self.bias).to(x.dtype)

    def saved(self) -> dict[str, torch.Tensor]:
        """``values``, ``places`` and ``bias`` if there is one."""
        tensors = {"values": self.values, "places": self.places}
        return tensors if self.bias is None else {**tensors, "bias": self.bias}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> Sparse24Linear:
        """See ``PackedLayer.rebuilt``."""
        return cls(tensors["values"], tensors["places"], tensors.get("bias"))

    def parameter_count(self) -> int:
        """Weights that this layer stands for, its zeros included, and biases."""
        return self.out_features * (self.in_features + (self.bias is not None))

    def hidden_bytes(self) -> int:
        """Values and places, once they lie inside the kernel's own tensor."""
        return 0 if self._kernel is None else self.out_features * self.in_features * 9 // 8

    def engine(self) -> str:
        """Which kernel multiplies."""
        return "dense" if self._kernel is None else "semi-structured sparse"
