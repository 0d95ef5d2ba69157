"""bfloat16: 16 bits with the range of float32 and 8 bits of precision."""

from __future__ import annotations

from typing import Any, Literal

from experiments.parts.number_format import second_format
from experiments.parts.shortfalls import no_units
from experiments.protocols import Ask, Aspect, BuildContext, Technique, Textbook
from experiments.records import Label, Report, StepEffect


class Bf16(Technique):
    """Cast the model to bfloat16 (torch only)."""

    title = "BF16"
    summary = "Store and compute in bfloat16: the range of float32, so nothing overflows, at 8 bits of precision."
    origin = "Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, arXiv:1905.12322"

    technique: Literal["bf16"] = "bf16"

    forms = frozenset({"torch"})
    label = Label.PACKED
    makes = "bfloat16"
    sets_number_format = True
    textbook = Textbook(
        latency="about 2x faster where the hardware has bfloat16 products (AMX, AVX512-BF16, GPU); slower elsewhere",
        size="2x smaller",
        quality="a loss in the third digit of the logits",
        speedup=(1.8, 2.2),
        shrink=(2.0, 2.0),
        loss=(0.0, 0.005),
    )

    def refuse(self, ask: Ask) -> str | None:
        """No ONNX: ONNX Runtime's CPU provider has no bfloat16 matrix products, so the graph would not load."""
        if ask.runtime.form == "onnx":
            return (
                "ONNX Runtime's CPU provider has no bfloat16 kernel for MatMul; "
                "choose runtime torch-eager for bf16, or fp16 or int8-dynamic with this runtime"
            )
        return second_format(ask, self)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """No bfloat16 units: every product is converted."""
        return no_units(report, "bfloat16") if aspect == "latency" else None

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Cast parameters and saved buffers. Raises as ``parts.cast.cast_module`` does."""
        from experiments.parts.cast import cast_module

        return cast_module(module, "bfloat16", self.technique)
