"""INT4 weight-only: weights stored in 4 bits with a scale for every few of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from experiments.parts.quantizer import Quantizer
from experiments.parts.shortfalls import left_wide
from experiments.parts.weight_only import Head, Method, WeightOnly
from experiments.parts.weight_only_checks import refuse_weight_only, valid_groups
from experiments.protocols import Ask, Aspect, BuildContext, ModelFacts, Textbook, Use
from experiments.records import Label, Report, StepEffect


class Int4WeightOnly(Quantizer):
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

    forms = frozenset({"torch", "onnx"})
    label = Label.WEIGHT_ONLY
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

    def refuse(self, ask: Ask) -> str | None:
        """Quantized models, groups that PyTorch's kernel can't take, CUDA without a kernel that was tried."""
        return refuse_weight_only(ask, self.how()) or super().refuse(ask)

    def valid(self, facts: ModelFacts) -> dict[str, Any]:
        """Group sizes that divide the model's width."""
        return {"group_size": valid_groups(facts, (16, 32, 64, 128, 256))}

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

    def quantize_torch(self, module: Any, keep: tuple[str, ...], context: BuildContext) -> tuple[Any, StepEffect]:
        """Swap the linear layers. Raises as ``parts.weight_only_torch.quantize_module`` does."""
        from experiments.parts.weight_only_torch import quantize_module

        return quantize_module(module, self.how(), keep, context)

    def quantize_onnx(self, source: Path, target: Path, keep: tuple[str, ...], context: BuildContext) -> StepEffect:
        """Quantize the graph. Raises as ``parts.nbits_graph.quantize_graph`` does."""
        from experiments.parts.nbits_graph import quantize_graph

        return quantize_graph(source, target, self.how(), keep, context)

    def simulated(self, layer: Any, context: BuildContext) -> Any:
        """4-bit weights, rounded to nearest in float32. See ``Quantizer.simulated``."""
        from experiments.parts.weight_rounding import BlockRoundedLinear

        return BlockRoundedLinear(layer, self.how().grid)
