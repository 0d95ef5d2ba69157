"""Static INT8 of an ONNX graph: ranges from calibration rows, QuantizeLinear/DequantizeLinear from ONNX Runtime."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments.parts.activation_histogram import Method
from experiments.protocols import BuildContext
from experiments.records import StepEffect

if TYPE_CHECKING:
    import onnx

    from experiments.parts.graph_statistics import GraphStatistics
    from experiments.parts.linear_graph import LinearGraph

    #: A graph and names of values in it -> how they are spread.
    Look = Callable[[Path, Collection[str]], GraphStatistics]


@dataclass(frozen=True)
class StaticSettings:
    """What ``int8-static`` may be told; see its fields."""

    technique: str
    method: Method
    percentile: float
    rows: int
    per_channel: bool
    reduce_range: bool | Literal["auto"]
    convolutions: bool
    embeddings: bool


def quantize_graph(
    source: Path, target: Path, settings: StaticSettings, keep: Sequence[str], context: BuildContext
) -> StepEffect:
    """Quantize every product with a constant matrix (and convolution, where asked) but those in ``keep``.

    Raises:
        ExperimentError: ``bad_model`` for non-finite weights or a result that does not load, ``no_effect`` if no node
            was quantized, ``unsupported`` if a pattern in ``keep`` matches nothing, ``bad_dataset`` without rows.
    """
    from experiments.parts.linear_graph import open_linear_graph

    graph = open_linear_graph(source, keep, embeddings=settings.embeddings, convolutions=settings.convolutions)
    return quantize_statically(graph, target, settings, calibrated(settings, {}, context), context)


def calibrated(settings: StaticSettings, kind: Mapping[str, Any], context: BuildContext) -> Look:
    """What looks at a graph on the calibration rows of ``context``.

    ``kind`` says what was done to the graph since the recipe's last step, for the address of its statistics.
    """
    from experiments.parts.graph_statistics import graph_statistics

    key = {**kind, "convolutions": settings.convolutions}
    return lambda path, values: graph_statistics(path, values, settings.rows, key, context)


def quantize_statically(
    graph: LinearGraph, target: Path, settings: StaticSettings, look: Look, context: BuildContext
) -> StepEffect:
    """As :func:`quantize_graph`, from an opened graph; its weights are let go on the way."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    from experiments.parts import int8_range
    from experiments.parts.embedding_nodes import quantize_tables
    from experiments.parts.int8_onnx import quiet_quantizer
    from experiments.parts.int8_saturation import saturation_warning
    from experiments.parts.int8_torch import tables_in_words
    from experiments.parts.integer_kernels import integer_products
    from experiments.parts.linear_graph import nothing_changed
    from experiments.parts.onnx_graph import LIMIT, load_graph, require_loads, save_graph, weights_bytes
    from experiments.parts.summaries import kept_in_words

    started = time.monotonic()
    reduce, why = int8_range.reduce_range(settings.reduce_range, context.isa)
    values = activations(graph)
    chosen = [node for node in graph.layers if node not in set(graph.excluded)]
    if not chosen:
        fix = "Name fewer layers in keep" + ("." if settings.convolutions else ", or set convolutions to true.")
        raise nothing_changed(settings.technique, graph, graph.model, fix)
    _own_biases(graph, chosen)
    named = context.work / "int8-source"
    named.mkdir(parents=True, exist_ok=True)
    save_graph(graph.model, named / "model.onnx")
    before = Counter(node.op_type for node in graph.model.graph.node)
    graph.model.Clear()
    statistics = look(named / "model.onnx", values)
    _write_ranges(statistics, settings, named / "ranges.json")
    with quiet_quantizer():
        quantize_static(
            named / "model.onnx",
            named / "quantized.onnx",
            None,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul", "Gemm", "Conv"],
            per_channel=settings.per_channel,
            reduce_range=reduce,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=chosen,
            use_external_data_format=weights_bytes(named / "model.onnx") > LIMIT,
            calibrate_method=CalibrationMethod.MinMax,
            calibration_cache_path=named / "ranges.json",
            # A product's sum leaves the integer kernel in float32; only convolutions have no kernel of that kind.
            extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"]},
        )
    result = load_graph(named / "quantized.onnx")
    changed = _quantized(result)
    kept = dict(graph.kept)
    for node in chosen:
        if node not in changed:
            kept[graph.layers[node]] = "ONNX Runtime left it float"
    if not changed:
        raise nothing_changed(settings.technique, graph, result, "Remove it from the recipe.")
    inserted, left = _note(before, result, changed)
    tables, wide_tables = quantize_tables(result, graph.asked) if settings.embeddings else ([], {})
    save_graph(result, target)
    require_loads(target, settings.technique, context.threads)
    warnings = [*statistics.warnings()]
    if wide := len(changed) - integer_products(target, context.threads):
        warnings.append(
            f"ONNX Runtime computes {wide} of the {len(changed)} quantized layers in float32: it found no integer "
            "kernel for how they lie in the graph"
        )
    if saturation := saturation_warning("onnx", reduce):
        warnings.append(saturation)
    layers = "linear layers and convolutions" if settings.convolutions else "linear layers"
    method = f"percentile {settings.percentile:g}" if settings.method == "percentile" else settings.method
    return StepEffect(
        technique=settings.technique,
        summary=f"{len(changed)} of {graph.total} {layers} quantized{kept_in_words(kept)}; "
        f"{tables_in_words(settings.embeddings, tables, wide_tables)}; ranges by {method} on {statistics.rows} without "
        f"padding; {inserted}; {left}; {why}",
        changed=len(changed),
        of=graph.total,
        kept=kept | wide_tables,
        warnings=tuple(warnings),
        seconds=time.monotonic() - started,
    )


def activations(graph: LinearGraph) -> list[str]:
    """Values whose ranges are needed: what layers are fed, and what convolutions give."""
    names: dict[str, None] = {}
    for node in graph.model.graph.node:
        if node.name in graph.layers:
            names[node.input[0]] = None
            if node.op_type == "Conv":
                names[node.output[0]] = None
    return list(names)


def _own_biases(graph: LinearGraph, chosen: Sequence[str]) -> None:
    """Give each bias that is an alias, or that several nodes read, a constant of its own.

    A bias is stored in the scale of its layer's products, and where it can't be, the layer is computed wide.
    """
    from onnx import numpy_helper

    model = graph.model
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    source = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    readers = Counter(name for node in model.graph.node for name in node.input)
    for node in model.graph.node:
        if node.name not in chosen or len(node.input) < 3:
            continue
        bias = node.input[2]
        while bias in source:
            bias = source[bias]
        if bias in weights and (bias != node.input[2] or readers[bias] > 1):
            own = f"{bias}_of_{node.name}"
            model.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(weights[bias]), own))
            node.input[2] = own


def _write_ranges(statistics: GraphStatistics, settings: StaticSettings, path: Path) -> None:
    """The calibration cache that ONNX Runtime's quantizer reads."""
    import numpy as np
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData, save_tensors_data

    ranges: dict[str, Any] = {}
    for name, histogram in statistics.histograms.items():
        low, high = histogram.range(settings.method, settings.percentile)
        ranges[name] = TensorData(lowest=np.array(low, np.float32), highest=np.array(high, np.float32))
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, ranges), path)


def _quantized(model: onnx.ModelProto) -> set[str]:
    """Names of the layers whose weights are stored as integers now."""
    integers = {
        node.output[0]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and any(t.name == node.input[0] for t in model.graph.initializer)
    }
    return {
        node.name
        for node in model.graph.node
        if node.op_type in ("MatMul", "Gemm", "Conv") and node.input[1] in integers
    }


def _note(before: Counter[str], result: onnx.ModelProto, changed: set[str]) -> tuple[str, str]:
    """What was put into the graph, and which kinds of nodes compute in float as before."""
    after = Counter(node.op_type for node in result.graph.node)
    inserted = {kind: after[kind] - before[kind] for kind in ("QuantizeLinear", "DequantizeLinear")}
    words = f"{inserted['QuantizeLinear']} QuantizeLinear and {inserted['DequantizeLinear']} DequantizeLinear inserted"
    narrow = Counter(node.op_type for node in result.graph.node if node.name in changed)
    computing = before - narrow
    for kind in ("Constant", "Identity", "Shape", "Gather", "Unsqueeze", "Concat", "Cast", "Reshape", "Slice"):
        del computing[kind]
    common = ", ".join(f"{count} {kind}" for kind, count in computing.most_common(4))
    more = len(computing) - 4
    return words, f"left float: {common or 'nothing'}" + (f" and {more} more kinds of nodes" if more > 0 else "")
