"""Static INT8: 8-bit weights stored, activations quantized with ranges that calibration rows told."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from experiments.parts.quantizer import Quantizer
from experiments.parts.shortfalls import no_units, wide_beside_integers
from experiments.protocols import Ask, Aspect, BuildContext, Textbook
from experiments.records import Label, Report, StepEffect


class Int8Static(Quantizer):
    """Quantize products with constant matrices in an ONNX graph, with ranges of activations that are fixed beforehand.

    Calibration rows are run in batches of equal length, so padding is never in the statistics. One pass over them
    serves all methods. Sums leave the integer kernels as float32, so only inputs are rounded.
    """

    title = "INT8 static"
    summary = "8-bit weights and activations, with activation ranges fixed beforehand on calibration rows."
    origin = "Jacob et al., arXiv:1712.05877; entropy calibration: Migacz, 8-bit Inference with TensorRT, GTC 2017"

    technique: Literal["int8-static"] = "int8-static"
    method: Literal["minmax", "entropy", "percentile"] = Field(
        default="minmax",
        description="How a range is chosen: all values seen, the clipping that loses least information, or all but a "
        "few of the values.",
    )
    percentile: float = Field(
        default=99.99, ge=90, le=100, description="Share of the values, in percent, that 'percentile' covers."
    )
    rows: int = Field(
        default=128,
        ge=1,
        le=4096,
        description="Calibration rows to run at most; for running text, windows of 128 tokens.",
    )
    per_channel: bool = Field(default=True, description="One weight scale per output channel instead of one a tensor.")
    reduce_range: bool | Literal["auto"] = Field(
        default="auto",
        description="Use 7 bits so that 8-bit products can't saturate; 'auto' does so where the CPU lacks VNNI.",
    )
    convolutions: bool = Field(default=False, description="Quantize convolutions too, their outputs included.")
    embeddings: bool = Field(
        default=False,
        description="Store embedding tables as 8-bit codes too, one scale a row. A table that is tied to the output "
        "head stays float.",
    )

    calibrates: ClassVar[bool] = True
    forms = frozenset({"onnx"})
    devices = frozenset({"cpu"})
    label = Label.PACKED
    makes = "int8"
    textbook = Textbook(
        latency="1.5x to 4x faster with 8-bit dot products (VNNI)",
        size="about 4x smaller linear layers",
        quality="0.5 to 2 % lower score",
        speedup=(1.5, 4.0),
        shrink=(4.0, 4.0),
        loss=(0.005, 0.02),
    )

    def refuse(self, ask: Ask) -> str | None:
        """ONNX on a CPU only."""
        if ask.runtime.form != "onnx":
            return "int8-static works on an ONNX graph only; choose runtime onnxruntime, or int8-dynamic for torch"
        if ask.device != "cpu":
            return "int8-static is made for the CPU's kernels; choose fp16 or bf16 on cuda, or resources.device: cpu"
        return super().refuse(ask)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """No 8-bit dot products; nodes that stay float with conversions around them; what stays wide; clipping."""
        if aspect == "latency":
            return no_units(report, "int8") or (
                "values are converted to 8 bits and back around every quantized node, which small nodes don't win back"
            )
        if aspect == "size":
            return wide_beside_integers(report, self.technique, self.embeddings)
        return "activation ranges are fixed beforehand: values beyond are clipped, and wide ranges round the rest"

    def quantize_onnx(self, source: Path, target: Path, keep: tuple[str, ...], context: BuildContext) -> StepEffect:
        """Calibrate and quantize. Raises as ``parts.int8_static_onnx.quantize_graph`` does."""
        from experiments.parts.int8_static_onnx import StaticSettings, quantize_graph

        settings = StaticSettings(
            technique=self.technique,
            method=self.method,
            percentile=self.percentile,
            rows=self.rows,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            convolutions=self.convolutions,
            embeddings=self.embeddings,
        )
        return quantize_graph(source, target, settings, keep, context)

    def simulated(self, layer: Any, context: BuildContext) -> Any:
        """8-bit weights and activations; a range is taken from the very values that it is applied to.

        ``percentile`` and ``entropy`` leave out the share of values beyond ``percentile``: which layers suffer is told
        well enough by that, and a quality floor is judged on real artifacts.
        """
        from experiments.parts.int8_range import reduce_range
        from experiments.parts.rounding import RoundedLinear

        reduce, _ = reduce_range(self.reduce_range, context.isa)
        percentile = 100.0 if self.method == "minmax" else self.percentile
        bits = 7 if reduce else 8
        return RoundedLinear(layer, per_channel=self.per_channel, activation_bits=bits, percentile=percentile)
