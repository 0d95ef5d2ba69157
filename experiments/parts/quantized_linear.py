"""A linear layer with packed 8-bit weights and dynamically quantized activations, and how it is saved without pickle.

Weights: symmetric int8 per output channel (or per tensor), ``w ~ scale * q`` with ``q`` in [-127, 127]. Activations:
asymmetric uint8 with one scale over the whole batch, found at each call. Kernels: ``quantized::linear_dynamic``
(FBGEMM on x86, QNNPACK on Arm), the same as behind the deprecated ``torch.ao.quantization.quantize_dynamic``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from experiments.parts.packed_layer import PackedLayer

#: Largest magnitude of a weight code; -128 is left out so that the range is symmetric.
QMAX = 127


def quantize_weight(weight: torch.Tensor, per_channel: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric int8 codes (out, in) and float32 scales, (out,) or (1,). An all-zero row gets scale 1."""
    wide = weight.detach().to(torch.float32)
    largest = wide.abs().amax(dim=1) if per_channel else wide.abs().amax().reshape(1)
    scales = torch.where(largest > 0, largest / QMAX, torch.ones_like(largest))
    codes = torch.clamp(torch.round(wide / scales.unsqueeze(1)), -QMAX, QMAX).to(torch.int8)
    return codes, scales


class DynamicInt8Linear(PackedLayer):
    """``y = x W^T + b`` with int8 weights. Only the packed form is held in memory.

    Args:
        codes: int8 (out, in).
        scales: float32, (out,) per channel or (1,) per tensor.
        bias: float32 (out,) or None.
        reduce_range: hold activations to 7 bits (see ``parts/int8_range.py``).
        inverse: float32 (in,) that inputs are multiplied by first, where the weights were smoothed, or None.
    """

    method: ClassVar[str] = "dynamic-int8-linear"

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        reduce_range: bool,
        inverse: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = int(codes.shape[0]), int(codes.shape[1])
        self.reduce_range = reduce_range
        self.register_buffer("inverse", inverse, persistent=False)
        self.per_channel = scales.numel() > 1 or self.out_features == 1
        self.has_bias = bias is not None
        wide_bias = None if bias is None else bias.detach().to(torch.float32)
        with warnings.catch_warnings():
            # torch 2.13 announces the removal of its quantized tensor type; the kernel's prepack still takes no other.
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions.*")
            weight = torch._make_per_channel_quantized_tensor(
                codes.contiguous(),
                scales.to(torch.float64).expand(self.out_features).contiguous(),
                torch.zeros(self.out_features, dtype=torch.int64),
                0,
            )
        self._packed: Any = torch.ops.quantized.linear_prepack(weight, wide_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out) in the dtype of ``x``; the kernel itself reads and writes float32."""
        wide = x.to(torch.float32)
        if self.inverse is not None:
            wide = wide * self.inverse
        y: torch.Tensor = torch.ops.quantized.linear_dynamic(wide, self._packed, reduce_range=self.reduce_range)
        return y.to(x.dtype)

    def saved(self) -> dict[str, torch.Tensor]:
        """What goes into safetensors: ``weight_int8``, ``weight_scale`` and ``bias`` if there is one."""
        weight, bias = torch.ops.quantized.linear_unpack(self._packed)
        scales = weight.q_per_channel_scales().to(torch.float32)
        if not self.per_channel:
            scales = scales[:1].clone()
        tensors = {"weight_int8": weight.int_repr(), "weight_scale": scales}
        if bias is not None:
            tensors["bias"] = bias.detach().clone()
        if self.inverse is not None:
            tensors["inverse"] = self.inverse
        return tensors

    def settings(self) -> dict[str, Any]:
        """See ``PackedLayer``."""
        return {"reduce_range": self.reduce_range}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> DynamicInt8Linear:
        """See ``PackedLayer``."""
        return cls(
            tensors["weight_int8"],
            tensors["weight_scale"],
            tensors.get("bias"),
            bool(settings["reduce_range"]),
            tensors.get("inverse"),
        )

    def hidden_bytes(self) -> int:
        """Bytes of codes, scales and bias, all of which the kernel's object holds."""
        scales = self.out_features if self.per_channel else 1
        return self.out_features * self.in_features + 4 * scales + 4 * self.out_features * self.has_bias

    def parameter_count(self) -> int:
        """Weights and biases that this layer stands for."""
        return self.out_features * (self.in_features + self.has_bias)

    def engine(self) -> str:
        """FBGEMM or QNNPACK."""
        return str(torch.backends.quantized.engine)

    def extra_repr(self) -> str:
        """Shape and settings, for ``print(module)``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.has_bias}, "
            f"per_channel={self.per_channel}, reduce_range={self.reduce_range}"
        )
