"""Linear layers that store their weights in 8 or 4 bits and compute in bfloat16, with torch's own CPU kernels.

``aten::_weight_int8pack_mm`` and ``aten::_weight_int4pack_mm_for_cpu`` are fast for bfloat16 inputs only; for float32
they fall back to a scalar loop. Inputs are therefore rounded to bfloat16 (8 significant bits) on their way in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from experiments.parts.packed_layer import PackedLayer


class WeightOnlyInt8Linear(PackedLayer):
    """``y = x W^T + b`` with 8-bit weights, one scale an output channel.

    Args:
        codes: int8 (out, in).
        scales: (out,); held in bfloat16.
        bias: float32 (out,) or None.
    """

    method: ClassVar[str] = "weight-only-int8-linear"
    in_place: ClassVar[bool] = True

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = int(codes.shape[0]), int(codes.shape[1])
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales.to(torch.bfloat16), persistent=False)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out) in the dtype of ``x``."""
        flat = x.reshape(-1, self.in_features).to(torch.bfloat16)
        y = torch.ops.aten._weight_int8pack_mm(flat, self.codes, self.scales).to(x.dtype)
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*x.shape[:-1], self.out_features)

    def saved(self) -> dict[str, torch.Tensor]:
        """``weight_int8``, ``weight_scale`` and ``bias`` if there is one."""
        tensors = {"weight_int8": self.codes, "weight_scale": self.scales}
        return tensors if self.bias is None else {**tensors, "bias": self.bias}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> WeightOnlyInt8Linear:
        """See ``PackedLayer``."""
        return cls(tensors["weight_int8"], tensors["weight_scale"], tensors.get("bias"))

    def parameter_count(self) -> int:
        """Weights and biases that this layer stands for."""
        return self.out_features * (self.in_features + (self.bias is not None))

    def engine(self) -> str:
        """The kernel."""
        return "aten::_weight_int8pack_mm (bfloat16)"

    def extra_repr(self) -> str:
        """Shape, for ``print(module)``."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class WeightOnlyInt4Linear(PackedLayer):
    """``y = (x / s) W^T + b`` with 4-bit weights, a scale and a zero point for every ``group`` inputs.

    Args:
        codes: uint8 (out, in / 2), two codes a byte, the first in the low half.
        scales: (out, in / group); held in bfloat16.
        zeros: uint8 (out, in / group), the codes that stand for 0.
        bias: float32 (out,) or None.
        input_factor: float32 (in,), what inputs are multiplied by first, or None.

    The kernel's own order of the codes depends on the CPU, so files hold the plain one.
    """

    method: ClassVar[str] = "weight-only-int4-linear"

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor,
        bias: torch.Tensor | None,
        input_factor: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = int(codes.shape[0]), int(codes.shape[1]) * 2
        self.group = self.in_features // int(scales.shape[1])
        plain = torch.stack((codes & 15, codes >> 4), dim=-1).reshape(self.out_features, self.in_features)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(plain.to(torch.int32), 1)
        # The kernel computes (code - 8) * scale + offset.
        wide = scales.to(torch.bfloat16).to(torch.float32)
        offsets = (8 - zeros.to(torch.float32)) * wide
        pairs = torch.stack((wide, offsets), dim=-1).transpose(0, 1).contiguous().to(torch.bfloat16)
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("grid", pairs, persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self.register_buffer("input_factor", input_factor, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out) in the dtype of ``x``."""
        flat = x.reshape(-1, self.in_features)
        if self.input_factor is not None:
            flat = flat * self.input_factor
        y = self._product(flat.to(torch.bfloat16), self.grid).to(x.dtype)
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(*x.shape[:-1], self.out_features)

    def _product(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, self.group, grid)
        return y

    def saved(self) -> dict[str, torch.Tensor]:
        """``weight_int4``, ``weight_scale``, ``weight_zero``, and ``bias`` and ``input_factor`` if there are such."""
        # With scale 1 and offset 8 the kernel multiplies by the codes themselves, and bfloat16 holds those exactly.
        ones = torch.ones_like(self.grid)
        ones[..., 1] = 8
        plain = self._product(torch.eye(self.in_features, dtype=torch.bfloat16), ones).to(torch.uint8).t()
        scales, offsets = self.grid.to(torch.float32).unbind(-1)
        tensors = {
            "weight_int4": plain[:, 0::2] | (plain[:, 1::2] << 4),
            "weight_scale": scales.t().contiguous().to(torch.bfloat16),
            "weight_zero": (8 - offsets / scales).round().t().contiguous().to(torch.uint8),
        }
        more = {"bias": self.bias, "input_factor": self.input_factor}
        return tensors | {name: tensor for name, tensor in more.items() if tensor is not None}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> WeightOnlyInt4Linear:
        """See ``PackedLayer``."""
        return cls(
            tensors["weight_int4"],
            tensors["weight_scale"],
            tensors["weight_zero"],
            tensors.get("bias"),
            tensors.get("input_factor"),
        )

    def parameter_count(self) -> int:
        """Weights and biases that this layer stands for."""
        return self.out_features * (self.in_features + (self.bias is not None))

    def engine(self) -> str:
        """The kernel."""
        return "aten::_weight_int4pack_mm_for_cpu (bfloat16)"

    def extra_repr(self) -> str:
        """Shape and group, for ``print(module)``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"group={self.group}"
        )
