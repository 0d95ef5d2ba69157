"""A linear layer with float8 weights and float8 activations, multiplied by CUDA's float8 tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from experiments.parts.packed_layer import PackedLayer


class Fp8Linear(PackedLayer):
    """``y = x W^T + b`` with e4m3 operands (Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433).

    Weights have one scale an output channel, inputs one a token, found at each call; products are summed in float32
    and come out in bfloat16. Codes are 448 at most.

    Args:
        codes: float8_e4m3fn (out, in); both dimensions are multiples of 16, as the kernel asks for.
        scales: float32 (out, 1).
        bias: float32 (out,) or None.
    """

    method: ClassVar[str] = "fp8-linear"

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = int(codes.shape[0]), int(codes.shape[1])
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out) in the dtype of ``x``."""
        flat = x.reshape(-1, self.in_features).to(torch.float32)
        scale = (flat.abs().amax(dim=1, keepdim=True) / 448).clamp(min=1e-12)
        narrow = (flat / scale).to(torch.float8_e4m3fn)
        y = torch._scaled_mm(
            narrow, self.codes.t(), scale_a=scale, scale_b=self.scales.t(), out_dtype=torch.bfloat16
        ).to(x.dtype)
        if self.bias is not None:
            y = y + self.bias.to(x.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)

    def saved(self) -> dict[str, torch.Tensor]:
        """``weight_fp8``, ``weight_scale`` and ``bias`` if there is one."""
        tensors = {"weight_fp8": self.codes, "weight_scale": self.scales}
        return tensors if self.bias is None else {**tensors, "bias": self.bias}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> Fp8Linear:
        """See ``PackedLayer``."""
        return cls(tensors["weight_fp8"], tensors["weight_scale"], tensors.get("bias"))

    def parameter_count(self) -> int:
        """Weights and biases that this layer stands for."""
        return self.out_features * (self.in_features + (self.bias is not None))

    def engine(self) -> str:
        """The kernel."""
        return "aten::_scaled_mm (float8_e4m3fn)"

    def extra_repr(self) -> str:
        """Shape, for ``print(module)``."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def narrowed(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, in) -> float8_e4m3fn codes (out, in) and float32 scales (out, 1). A row of zeros gets scale 1."""
    wide = weight.detach().to(torch.float32)
    largest = wide.abs().amax(dim=1, keepdim=True)
    scales = torch.where(largest > 0, largest / 448, torch.ones_like(largest))
    return (wide / scales).to(torch.float8_e4m3fn), scales
