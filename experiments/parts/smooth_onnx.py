"""SmoothQuant of an ONNX graph: calibrate, move the outliers, quantize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.parts.int8_settings import DynamicSettings
from experiments.parts.int8_static_onnx import StaticSettings
from experiments.parts.summaries import first_clause
from experiments.protocols import BuildContext
from experiments.records import StepEffect


@dataclass(frozen=True)
class SmoothSettings:
    """What ``smoothquant`` may be told; ``quantizer`` is what follows the smoothing."""

    alpha: float
    everywhere: bool
    rows: int
    quantizer: DynamicSettings | StaticSettings


def quantize_smoothed(
    source: Path, target: Path, settings: SmoothSettings, keep: Sequence[str], context: BuildContext
) -> StepEffect:
    """Smooth the inputs of all linear layers but those in ``keep``, then quantize them into ``target``.

    Raises:
        ExperimentError: as ``parts.int8_onnx.quantize_graph`` and ``parts.int8_static_onnx.quantize_graph``.
    """
    from experiments.parts.graph_statistics import graph_statistics
    from experiments.parts.int8_onnx import quantize_dynamically
    from experiments.parts.int8_static_onnx import activations, calibrated, quantize_statically
    from experiments.parts.linear_graph import open_linear_graph
    from experiments.parts.smooth_graph import smooth_graph

    graph = open_linear_graph(source, keep, embeddings=settings.quantizer.embeddings)
    # The same pass, under the same address, as int8-static's.
    statistics = graph_statistics(source, activations(graph), settings.rows, {"convolutions": False}, context)
    smoothed = smooth_graph(graph, statistics.channels, settings.alpha, settings.everywhere)
    if isinstance(settings.quantizer, StaticSettings):
        smooth = {"alpha": settings.alpha, "everywhere": settings.everywhere, "excluded": sorted(graph.excluded)}
        look = calibrated(settings.quantizer, smooth, context)
        effect = quantize_statically(graph, target, settings.quantizer, look, context)
    else:
        effect = quantize_dynamically(graph, target, settings.quantizer, context)
    head, rest = first_clause(effect.summary)
    words = f"{smoothed.in_words()} (alpha {settings.alpha:g}, {statistics.rows})"
    warnings = dict.fromkeys((*statistics.warnings(), *effect.warnings))
    return effect.model_copy(update={"summary": f"{head}; {words}; {rest}", "warnings": tuple(warnings)})
