"""Half precision: weights and computation in IEEE 754 binary16."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from experiments.parts.number_format import second_format
from experiments.parts.shortfalls import no_units
from experiments.protocols import Ask, Aspect, BuildContext, Technique, Textbook
from experiments.records import Label, Report, StepEffect


class Fp16(Technique):
    """Cast the model to float16.

    In an ONNX graph the key-value cache becomes float16 too; other inputs and the outputs keep their types.
    """

    title = "FP16"
    summary = "Store and compute in 16-bit floating point (5 exponent bits: values above 65,504 overflow)."
    origin = "IEEE 754-2008 binary16; Micikevicius et al., Mixed Precision Training, arXiv:1710.03740"

    technique: Literal["fp16"] = "fp16"
    keep: tuple[str, ...] = Field(
        default=(),
        description="ONNX only: operator types to leave in float32, e.g. 'LayerNormalization' where it overflows.",
    )

    forms = frozenset({"torch", "onnx"})
    label = Label.PACKED
    makes = "float16"
    sets_number_format = True
    textbook = Textbook(
        latency="about 2x faster where the hardware computes in 16 bits; slower where it must convert",
        size="2x smaller",
        quality="no visible loss unless a value overflows",
        speedup=(1.8, 2.2),
        shrink=(2.0, 2.0),
        loss=(0.0, 0.005),
    )

    def refuse(self, ask: Ask) -> str | None:
        """One number format a recipe; ``keep`` is for ONNX graphs."""
        if self.keep and ask.runtime.form != "onnx":
            return "fp16's keep names ONNX operators, and this runtime runs torch modules; remove keep"
        return second_format(ask, self)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """No half-precision units, or operators that were kept wide."""
        if aspect == "latency":
            return no_units(report, "float16")
        if aspect == "size" and self.keep:
            return f"{', '.join(self.keep)} were kept in float32"
        return None

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Cast parameters and saved buffers. Raises as ``parts.cast.cast_module`` does."""
        from experiments.parts.cast import cast_module

        return cast_module(module, "float16", self.technique)

    def apply_onnx(self, source: Path, target: Path, context: BuildContext) -> StepEffect:
        """Convert the graph. Raises as ``parts.onnx_half.convert_to_half`` does."""
        from experiments.parts.onnx_half import convert_to_half

        return convert_to_half(source, target, self.keep, context)
