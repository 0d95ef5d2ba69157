"""FP8: weights and activations in 8-bit floating point, on GPUs that multiply it."""

from __future__ import annotations

from typing import Any, Literal

from experiments.parts.quantizer import Quantizer
from experiments.parts.shortfalls import left_wide
from experiments.protocols import Ask, Aspect, BuildContext, Textbook
from experiments.records import Label, Report, StepEffect

#: Ada Lovelace: the first CUDA devices with float8 tensor cores.
CAPABILITY = (8, 9)


class Fp8(Quantizer):
    """Linear layers (``nn.Linear``, ``Conv1D``) with float8 e4m3 weights, one scale an output channel, and activations.

    Activations are scaled for each token at each call, so no calibration data is needed. Needs a CUDA device of
    compute capability 8.9 or later. An output head that is tied to the input embedding stays as it is.
    """

    title = "FP8"
    summary = "8-bit floating point (e4m3) for weights and activations of linear layers, on GPUs with float8 units."
    origin = "Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433"

    technique: Literal["fp8"] = "fp8"

    forms = frozenset({"torch"})
    devices = frozenset({"cuda"})
    label = Label.PACKED
    makes = "float8_e4m3fn"
    textbook = Textbook(
        latency="up to 2x faster than 16 bits for large products",
        size="4x smaller linear layers than float32",
        quality="no visible loss to 1 %",
        speedup=(1.5, 4.0),
        shrink=(2.0, 4.0),
        loss=(0.0, 0.01),
    )

    def refuse(self, ask: Ask) -> str | None:
        """Quantized models, and devices without float8 units, by name."""
        if ask.model is not None and ask.model.quantized:
            return f"{ask.model.name} is already quantized ({ask.model.quantized}); choose its unquantized original"
        if ask.device != "cuda":
            return (
                "fp8 needs a CUDA device of compute capability 8.9 or later, whose tensor cores multiply float8; a CPU "
                "has no such units: choose int8-dynamic or int8-weight-only"
            )
        able = [d for d in ask.devices if d.compute_capability is None or d.compute_capability >= CAPABILITY]
        if ask.devices and not able:
            first = ask.devices[0]
            found = ".".join(map(str, first.compute_capability or ()))
            return f"fp8 needs compute capability 8.9 or later, and {first.model} has {found}; choose fp16 or bf16"
        return super().refuse(ask)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """Small products, and what is not stored small."""
        if aspect == "latency":
            return "products of a small model are too short for float8 units, and scaling activations costs time"
        return left_wide(report, self.technique) if aspect == "size" else None

    def quantize_torch(self, module: Any, keep: tuple[str, ...], context: BuildContext) -> tuple[Any, StepEffect]:
        """Swap the linear layers. Raises as ``parts.fp8_torch.quantize_module`` does."""
        from experiments.parts.fp8_torch import quantize_module

        return quantize_module(module, keep, context)

    def simulated(self, layer: Any, context: BuildContext) -> Any:
        """Float8 weights and activations, computed in float32. See ``Quantizer.simulated``."""
        from experiments.parts.fp8_torch import Fp8RoundedLinear

        return Fp8RoundedLinear(layer)
