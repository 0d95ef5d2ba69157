"""What all quantizers share: layers that stay wide, by name or because a measured quality floor asks for it."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from experiments.parts.number_format import second_format
from experiments.protocols import Ask, BuildContext, Technique, Use
from experiments.records import StepEffect


class Quantizer(Technique):
    """A technique that stores the weights of linear layers as integers.

    A subclass says how layers are made narrow (:meth:`quantize_torch`, :meth:`quantize_onnx`) and what one layer
    would compute then (:meth:`simulated`); which layers stay wide is settled here and in ``parts/accuracy_floor.py``.
    """

    keep: tuple[str, ...] = Field(
        default=(),
        description="Layers to leave wide, by name with wildcards, e.g. 'lm_head' or '*.down_proj'.",
    )
    max_drop: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Largest loss of quality on the calibration rows: 0.01 is one point of accuracy, 1 % more "
        "perplexity, or a mean cosine of 0.99. The most sensitive layers stay wide until it holds.",
    )

    quantizes: ClassVar[bool] = True
    sets_number_format: ClassVar[bool] = True
    #: Needs calibration rows whatever its settings are.
    calibrates: ClassVar[bool] = False

    def needs(self) -> frozenset[Use]:
        """Calibration rows, if this quantizer or its quality floor is measured on some."""
        return frozenset({"calibration"}) if self.calibrates or self.max_drop is not None else frozenset()

    def refuse(self, ask: Ask) -> str | None:
        """One number format a recipe."""
        return second_format(ask, self)

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Quantize all layers but those that stay wide. Raises as :meth:`quantize_torch` does."""
        if self.max_drop is None:
            return self.quantize_torch(module, self.keep, context)
        from experiments.parts.accuracy_floor import quantized_module

        return quantized_module(self, module, context)

    def apply_onnx(self, source: Path, target: Path, context: BuildContext) -> StepEffect:
        """Quantize all layers but those that stay wide. Raises as :meth:`quantize_onnx` does."""
        if self.max_drop is None:
            return self.quantize_onnx(source, target, self.keep, context)
        from experiments.parts.accuracy_floor import quantized_graph

        return quantized_graph(self, source, target, context)

    def quantize_torch(self, module: Any, keep: tuple[str, ...], context: BuildContext) -> tuple[Any, StepEffect]:
        """Quantize ``module`` in place, all layers but ``keep``.

        Raises:
            ExperimentError: ``bad_model`` for non-finite weights, ``no_effect`` if no layer was left to quantize,
                ``unsupported`` if a pattern in ``keep`` matches nothing.
        """
        raise NotImplementedError

    def quantize_onnx(self, source: Path, target: Path, keep: tuple[str, ...], context: BuildContext) -> StepEffect:
        """Read the graph ``source``, write it to ``target`` with all linear layers but ``keep`` quantized.

        Raises:
            ExperimentError: as :meth:`quantize_torch`; ``bad_model`` if the result does not load.
        """
        raise NotImplementedError

    @abstractmethod
    def simulated(self, layer: Any, context: BuildContext) -> Any:
        """A module that computes what ``layer`` (``parts.linear_layers.LinearLayer``) would once it is quantized.

        It takes float inputs (..., in), gives (..., out), and lets gradients pass to its inputs and to
        ``layer.weight`` as if rounding were the identity (straight-through), so that a layer's sensitivity can be
        measured and a training step can learn to live with the rounding.
        """
