"""SmoothQuant: outliers of activations are moved into the weights, then both are quantized to 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from experiments.parts.int8_settings import DynamicSettings
from experiments.parts.quantizer import Quantizer
from experiments.parts.shortfalls import no_units, wide_beside_integers
from experiments.protocols import Ask, Aspect, BuildContext, Textbook
from experiments.records import Label, Report, StepEffect


class SmoothQuant(Quantizer):
    """Divide each input channel of a linear layer by a factor and multiply its weights by it, then quantize as INT8.

    The factors come from calibration rows and change no answer by themselves. In an ONNX graph the division is taken
    over by the norm (or gated product) before a layer where only such layers read it, else by a multiplication. On a
    torch module each layer divides its own inputs.
    """

    title = "SmoothQuant"
    summary = "Moves activation outliers into the weights, so that 8 bits suffice for both."
    origin = "Xiao et al., SmoothQuant, arXiv:2211.10438"

    technique: Literal["smoothquant"] = "smoothquant"
    alpha: float = Field(
        default=0.5, ge=0, le=1, description="How much of the outliers goes into the weights: 0 nothing, 1 all."
    )
    activations: Literal["dynamic", "static"] = Field(
        default="dynamic",
        description="Ranges of activations found at each call, or fixed on the calibration rows (ONNX only).",
    )
    everywhere: bool = Field(
        default=True,
        description="Smooth also where that costs a multiplication, not only after norms and gated products (ONNX).",
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
    embeddings: bool = Field(
        default=False,
        description="Store embedding tables as 8-bit codes too, one scale a row. A table that is tied to the output "
        "head stays float.",
    )

    calibrates: ClassVar[bool] = True
    forms = frozenset({"torch", "onnx"})
    devices = frozenset({"cpu"})
    label = Label.PACKED
    makes = "int8"
    textbook = Textbook(
        latency="up to 1.56x faster",
        size="about 2x smaller than FP16, 4x smaller than FP32",
        quality="less than 1 % lower score",
        speedup=(1.2, 1.56),
        shrink=(4.0, 4.0),
        loss=(0.0, 0.01),
    )

    def refuse(self, ask: Ask) -> str | None:
        """CPU only; static ranges need an ONNX graph."""
        if ask.device != "cpu":
            return "smoothquant has kernels for the CPU only; choose fp16 or bf16 on cuda, or resources.device: cpu"
        if self.activations == "static" and ask.runtime.form != "onnx":
            return "smoothquant with static activations needs an ONNX graph; choose activations dynamic or onnxruntime"
        return super().refuse(ask)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """No 8-bit dot products; multiplications that were put in; what stays wide; outliers of single tokens."""
        if aspect == "latency":
            return no_units(report, "int8") or (
                "activations are smoothed and quantized at each call, which small matrices do not win back"
            )
        if aspect == "size":
            return wide_beside_integers(report, self.technique, self.embeddings)
        return "outliers of single tokens are in no channel's factor, and weights take over what activations lose"

    def quantize_torch(self, module: Any, keep: tuple[str, ...], context: BuildContext) -> tuple[Any, StepEffect]:
        """Smooth and swap the linear layers. Raises as ``parts.smooth_torch.quantize_smoothed`` does."""
        from experiments.parts.smooth_torch import quantize_smoothed

        return quantize_smoothed(module, self._dynamic(), self.alpha, self.rows, keep, context)

    def quantize_onnx(self, source: Path, target: Path, keep: tuple[str, ...], context: BuildContext) -> StepEffect:
        """Smooth and quantize the graph. Raises as ``parts.smooth_onnx.quantize_smoothed`` does."""
        from experiments.parts.int8_static_onnx import StaticSettings
        from experiments.parts.smooth_onnx import SmoothSettings, quantize_smoothed

        static = StaticSettings(
            technique=self.technique,
            method="minmax",
            percentile=100,
            rows=self.rows,
            per_channel=self.per_channel,
            reduce_range=self.reduce_range,
            convolutions=False,
            embeddings=self.embeddings,
        )
        quantizer = static if self.activations == "static" else self._dynamic()
        settings = SmoothSettings(self.alpha, self.everywhere, self.rows, quantizer)
        return quantize_smoothed(source, target, settings, keep, context)

    def simulated(self, layer: Any, context: BuildContext) -> Any:
        """8-bit weights and activations after smoothing with the magnitudes of the very inputs that it is given."""
        from experiments.parts.int8_range import reduce_range
        from experiments.parts.rounding import RoundedLinear

        reduce, _ = reduce_range(self.reduce_range, context.isa)
        bits = 7 if reduce else 8
        return RoundedLinear(layer, per_channel=self.per_channel, activation_bits=bits, alpha=self.alpha)

    def _dynamic(self) -> DynamicSettings:
        return DynamicSettings(self.technique, self.per_channel, self.reduce_range, self.embeddings)
