"""INT8 weight-only: weights stored in 8 bits, activations untouched by any calibration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from experiments.parts.shortfalls import left_wide
from experiments.parts.weight_only import Head, WeightOnly
from experiments.parts.weight_only_quantizer import WeightOnlyQuantizer
from experiments.protocols import Ask, Aspect, Textbook
from experiments.records import Report


class Int8WeightOnly(WeightOnlyQuantizer):
    """Store the weights of linear layers (``nn.Linear``, ``Conv1D``; in ONNX ``MatMul`` and ``Gemm``) in 8 bits.

    ONNX Runtime reads them with ``MatMulNBits``, a scale for every group of weights; PyTorch with its own 8-bit kernel
    in bfloat16, a scale for every output channel. An output head that is tied to the input embedding is treated as
    ``head`` says.
    """

    title = "INT8 weight-only"
    summary = "8-bit weights, wide activations: about as exact as the original, and half the bytes of 16 bits."
    origin = "Dettmers et al., LLM.int8(), arXiv:2208.07339 (weights); ONNX Runtime MatMulNBits"

    technique: Literal["int8-weight-only"] = "int8-weight-only"
    group_size: Literal[16, 32, 64, 128, 256] | None = Field(
        default=None,
        description="ONNX Runtime: weights of a row that share one scale (default 32). PyTorch's kernel has one scale "
        "for each output channel and takes no group size.",
    )
    symmetric: bool = Field(
        default=True, description="No zero point. ONNX Runtime can do either, PyTorch's kernel knows symmetric only."
    )
    accuracy_level: Literal[0, 4] = Field(
        default=4,
        description="ONNX Runtime on a CPU: 4 rounds activations to 8 bits and multiplies integers, 0 multiplies in "
        "float32.",
    )
    head: Head = Field(
        default="own-codes",
        description="An output head tied to the embedding: own-codes stores 8-bit codes beside the float table; "
        "shared-codes lets the embedding read the same codes, the smallest; float leaves the tie as it is.",
    )

    makes = "int8"
    textbook = Textbook(
        latency="1.3x to 2x faster tokens where reading the weights is what takes time",
        size="about 4x smaller linear layers",
        quality="no visible loss",
        speedup=(1.3, 2.0),
        shrink=(2.0, 4.0),
        loss=(0.0, 0.005),
    )

    def refuse(self, ask: Ask) -> str | None:
        """Besides what no weight-only technique can do: settings that PyTorch's 8-bit kernel does not have."""
        if ask.runtime.form == "torch" and self.group_size is not None:
            return "PyTorch's 8-bit kernel has one scale an output channel; leave group_size out, or choose onnxruntime"
        if ask.runtime.form == "torch" and not self.symmetric:
            return "PyTorch's 8-bit kernel has no zero points; leave symmetric on, or choose runtime onnxruntime"
        return super().refuse(ask)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """Where reading weights is not what takes the time, and what is not stored small."""
        if aspect == "latency":
            return "widening codes costs time, and small models and long prompts do not wait for their weights"
        return left_wide(report, self.technique) if aspect == "size" else None

    def how(self) -> WeightOnly:
        """These settings, as both forms take them."""
        from experiments.parts.block_codes import Grid

        return WeightOnly(
            technique=self.technique,
            grid=Grid(bits=8, group=self.group_size or 32, symmetric=self.symmetric),
            head=self.head,
            accuracy_level=self.accuracy_level,
        )
