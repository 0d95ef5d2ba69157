"""Dynamic INT8 of an ONNX graph through ONNX Runtime's quantizer, counted and tried afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.protocols import BuildContext
from experiments.records import StepEffect

if TYPE_CHECKING:
    from experiments.parts.int8_settings import DynamicSettings
    from experiments.parts.linear_graph import LinearGraph


def quantize_graph(
    source: Path, target: Path, settings: DynamicSettings, keep: Sequence[str], context: BuildContext
) -> StepEffect:
    """Quantize every ``MatMul`` and ``Gemm`` with a constant matrix, except those in ``keep``; write ``target``.

    Raises:
        ExperimentError: ``bad_model`` for non-finite weights or a result that does not load, ``no_effect`` if no node
            was quantized, ``unsupported`` if a pattern in ``keep`` matches nothing.
    """
    from experiments.parts.linear_graph import open_linear_graph

    graph = open_linear_graph(source, keep, embeddings=settings.embeddings)
    return quantize_dynamically(graph, target, settings, context)


def quantize_dynamically(
    graph: LinearGraph, target: Path, settings: DynamicSettings, context: BuildContext
) -> StepEffect:
    """As :func:`quantize_graph`, from an opened graph; its weights are let go on the way."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from experiments.parts import int8_range
    from experiments.parts.embedding_nodes import quantize_tables
    from experiments.parts.int8_saturation import saturation_warning
    from experiments.parts.int8_torch import tables_in_words
    from experiments.parts.linear_graph import nothing_changed
    from experiments.parts.onnx_graph import LIMIT, linear_nodes, load_graph, require_loads, save_graph, weights_bytes
    from experiments.parts.summaries import kept_in_words

    started = time.monotonic()
    reduce, why = int8_range.reduce_range(settings.reduce_range, context.isa)
    kept = dict(graph.kept)
    named = context.work / "int8-source"
    named.mkdir(parents=True, exist_ok=True)
    save_graph(graph.model, named / "model.onnx")
    graph.model.Clear()
    with quiet_quantizer():
        quantize_dynamic(
            named / "model.onnx",
            named / "quantized.onnx",
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=settings.per_channel,
            reduce_range=reduce,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=graph.excluded,
            use_external_data_format=weights_bytes(named / "model.onnx") > LIMIT,
            extra_options={"MatMulConstBOnly": True},
        )
    result = load_graph(named / "quantized.onnx")
    still = {node.name for node in linear_nodes(result)[0]}
    changed = sum(1 for node in result.graph.node if node.op_type == "MatMulInteger")
    for node, layer in graph.layers.items():
        if node in still and layer not in kept:
            kept[layer] = "ONNX Runtime left it float (a Gemm with alpha, beta or a transposed input)"
    if not changed:
        raise nothing_changed(
            settings.technique,
            graph,
            result,
            f"Name fewer layers in keep, or remove {settings.technique} from the recipe.",
        )
    tables, wide_tables = quantize_tables(result, graph.asked) if settings.embeddings else ([], {})
    save_graph(result, target)
    require_loads(target, settings.technique, context.threads)
    warning = saturation_warning("onnx", reduce)
    return StepEffect(
        technique=settings.technique,
        summary=f"{changed} of {graph.total} linear layers quantized{kept_in_words(kept)}; "
        f"{tables_in_words(settings.embeddings, tables, wide_tables)}; {why}",
        changed=changed,
        of=graph.total,
        kept=kept | wide_tables,
        warnings=(warning,) if warning else (),
        seconds=time.monotonic() - started,
    )


@contextmanager
def quiet_quantizer() -> Iterator[Any]:
    """Without the quantizer's advice to pre-process, which doesn't hold here."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
