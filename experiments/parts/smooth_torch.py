"""SmoothQuant of a torch module: each quantized layer divides its own inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.parts.summaries import first_clause
from experiments.protocols import BuildContext
from experiments.records import StepEffect

if TYPE_CHECKING:
    from experiments.parts.int8_settings import DynamicSettings

#: Tokens of one window of running text, as for graphs.
WINDOW = 128


def quantize_smoothed(
    module: Any, settings: DynamicSettings, alpha: float, rows: int, keep: Sequence[str], context: BuildContext
) -> tuple[Any, StepEffect]:
    """Swap the linear layers of ``module`` for smoothed 8-bit ones, except tied heads and those in ``keep``.

    Raises:
        ExperimentError: as ``parts.int8_torch.quantize_linears``; ``bad_dataset`` if there are no calibration rows.
    """
    from experiments.parts.calibration import input_statistics
    from experiments.parts.int8_torch import quantize_linears
    from experiments.parts.linear_layers import linear_layers
    from experiments.parts.rounding import smoothing

    length = WINDOW if context.task == "text-generation" else None
    statistics = input_statistics(module, context, samples=rows, length=length)
    scales = {
        layer.name: smoothing(statistics[layer.name].largest, layer.weight, alpha)
        for layer in linear_layers(module)[0]
        if layer.name in statistics
    }
    module, effect = quantize_linears(module, settings, keep, context, scales)
    smooth = [name for name in scales if name not in effect.kept]
    head, rest = first_clause(effect.summary)
    words = f"inputs of {len(smooth)} layers smoothed by a multiplication before them (alpha {alpha:g})"
    return module, effect.model_copy(update={"summary": f"{head}; {words}; {rest}"})
