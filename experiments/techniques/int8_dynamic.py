"""Dynamic INT8: 8-bit weights stored, activations quantized at each call, products in integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from experiments.parts.int8_settings import DynamicSettings
from experiments.parts.quantizer import Quantizer
from experiments.parts.shortfalls import no_units, wide_beside_integers
from experiments.protocols import Ask, Aspect, BuildContext, Textbook
from experiments.records import Label, Report, StepEffect


class Int8Dynamic(Quantizer):
    """Quantize the linear layers (``nn.Linear``, ``Conv1D``; in ONNX ``MatMul`` and ``Gemm`` with constant weights).

    Convolutions and normalisation stay in floating point, and embeddings unless asked for. An output head that shares
    its tensor with the input embedding stays in floating point, and so does that embedding: the pair is one tensor,
    and quantizing either would break the tie and store it twice.
    """

    title = "INT8 dynamic"
    summary = "8-bit weights; activations are quantized on the fly, so no calibration data is needed."
    origin = "Jacob et al., Quantization and Training of Neural Networks, arXiv:1712.05877"

    technique: Literal["int8-dynamic"] = "int8-dynamic"
    per_channel: bool = Field(default=True, description="One scale per output channel instead of one per tensor.")
    reduce_range: bool | Literal["auto"] = Field(
        default="auto",
        description="Use 7 bits so that 8-bit products can't saturate; 'auto' does so where the CPU lacks VNNI.",
    )
    embeddings: bool = Field(
        default=False,
        description="Store embedding tables as 8-bit codes too, one scale a row; a lookup widens the rows that it "
        "takes. A table that is tied to the output head stays float.",
    )

    forms = frozenset({"torch", "onnx"})
    devices = frozenset({"cpu"})
    label = Label.PACKED
    makes = "int8"
    textbook = Textbook(
        latency="1.5x to 4x faster with 8-bit dot products (VNNI)",
        size="about 4x smaller linear layers",
        quality="0.5 to 2 % lower score; decoders can lose far more",
        speedup=(1.5, 4.0),
        shrink=(4.0, 4.0),
        loss=(0.005, 0.02),
    )

    def refuse(self, ask: Ask) -> str | None:
        """CPU only: neither torch nor ONNX Runtime has CUDA kernels for dynamically quantized activations."""
        if ask.device != "cpu":
            return "int8-dynamic has kernels for the CPU only; choose fp16 or bf16 on cuda, or resources.device: cpu"
        return super().refuse(ask)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """No 8-bit dot products; embeddings that stay wide; one range for a whole batch of activations."""
        if aspect == "latency":
            return no_units(report, "int8") or (
                "activations are quantized anew at each call, which small matrices do not win back"
            )
        if aspect == "size":
            return wide_beside_integers(report, self.technique, self.embeddings)
        return "one range for all activations of a layer is set by its few largest values, and the rest lose precision"

    def quantize_torch(self, module: Any, keep: tuple[str, ...], context: BuildContext) -> tuple[Any, StepEffect]:
        """Swap the linear layers. Raises as ``parts.int8_torch.quantize_linears`` does."""
        from experiments.parts.int8_torch import quantize_linears

        return quantize_linears(module, self._settings(), keep, context)

    def quantize_onnx(self, source: Path, target: Path, keep: tuple[str, ...], context: BuildContext) -> StepEffect:
        """Quantize the graph. Raises as ``parts.int8_onnx.quantize_graph`` does."""
        from experiments.parts.int8_onnx import quantize_graph

        return quantize_graph(source, target, self._settings(), keep, context)

    def _settings(self) -> DynamicSettings:
        return DynamicSettings(self.technique, self.per_channel, self.reduce_range, self.embeddings)

    def simulated(self, layer: Any, context: BuildContext) -> Any:
        """8-bit weights and activations, rounded in float32. See ``Quantizer.simulated``."""
        from experiments.parts.int8_range import reduce_range
        from experiments.parts.rounding import RoundedLinear

        reduce, _ = reduce_range(self.reduce_range, context.isa)
        return RoundedLinear(layer, per_channel=self.per_channel, activation_bits=7 if reduce else 8)
