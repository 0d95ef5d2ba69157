"""INT4 weight-only: weights stored in 4 bits with a scale for every few of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from experiments.parts.shortfalls import left_wide
from experiments.parts.weight_only import Head, Method, WeightOnly
from experiments.parts.weight_only_quantizer import WeightOnlyQuantizer
from experiments.protocols import Aspect, Textbook, Use
from experiments.records import Report


class Int4WeightOnly(WeightOnlyQuantizer):
    """Store the weights of linear layers (``nn.Linear``, ``Conv1D``; in ONNX ``MatMul`` and ``Gemm``) in 4 bits.

    ONNX Runtime reads them with ``MatMulNBits``, PyTorch with its own 4-bit kernel in bfloat16. An output head that is
    tied to the input embedding is treated as ``head`` says.
    """

    title = "INT4 weight-only"
    summary = "4-bit weights with a scale for every group of them; activations stay wide. Made for language models."
    origin = (
        "Frantar et al., GPTQ, arXiv:2210.17323; Lin et al., AWQ, arXiv:2306.00978; Badri & Shaji, HQQ, 2023; "
        "ONNX Runtime MatMulNBits"
    )

    technique: Literal["int4-weight-only"] = "int4-weight-only"
    method: Method = Field(
        default="hqq",
        description="rtn: round to nearest. hqq: fit each group's grid to a heavy-tailed error. gptq: carry each "
        "channel's rounding error to the next ones (needs calibration rows). awq: scale up the channels that matter "
        "(needs calibration rows).",
    )
    group_size: Literal[16, 32, 64, 128, 256] = Field(
        default=32,
        description="Weights of a row that share one scale: smaller is more exact and larger on disk. PyTorch takes 32 "
        "and more, and it must divide the width of the layers; in ONNX Runtime the last group may be shorter.",
    )
    symmetric: bool = Field(default=False, description="No zero point: a little smaller, less exact.")
    accuracy_level: Literal[0, 4] = Field(
        default=4,
        description="ONNX Runtime on a CPU: 4 rounds activations to 8 bits and multiplies integers, 0 multiplies in "
        "float32.",
    )
    head: Head = Field(
        default="own-codes",
        description="An output head tied to the embedding: own-codes stores 4-bit codes beside the float table; "
        "shared-codes (ONNX) lets the embedding read the same codes, the smallest; float leaves the tie as it is.",
    )
    damping: float = Field(
        default=0.01, gt=0, le=1, description="gptq: added to the Hessian's diagonal, as a share of its mean."
    )
    act_order: bool = Field(default=False, description="gptq: take the channels with the largest inputs first.")
    samples: int = Field(
        default=128, ge=1, le=4096, description="gptq and awq: calibration rows, or windows of running text, at most."
    )

    makes = "int4"
    textbook = Textbook(
        latency="1.5x to 3x faster tokens where reading the weights is what takes time; slower prompts",
        size="up to 8x smaller linear layers, less their scales",
        quality="1 to 5 % more perplexity for large models, more for small ones",
        speedup=(1.5, 3.0),
        shrink=(3.0, 8.0),
        loss=(0.01, 0.05),
    )

    def needs(self) -> frozenset[Use]:
        """Calibration rows for gptq and awq."""
        return super().needs() | (frozenset({"calibration"}) if self.how().calibrates else frozenset())

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """Where reading weights is not what takes the time, small models, and what is not stored small."""
        if aspect == "latency":
            return "unpacking codes costs time, and small models and long prompts do not wait for their weights"
        if aspect == "size":
            return left_wide(report, self.technique)
        return "small models lose more than large ones: they have less redundancy to round away"

    def how(self) -> WeightOnly:
        """These settings, as both forms take them."""
        from experiments.parts.block_codes import Grid

        return WeightOnly(
            technique=self.technique,
            grid=Grid(bits=4, group=self.group_size, symmetric=self.symmetric),
            method=self.method,
            head=self.head,
            accuracy_level=self.accuracy_level,
            damping=self.damping,
            act_order=self.act_order,
            samples=self.samples,
        )
