"""Dynamic INT8 of an ONNX graph through ONNX Runtime's quantizer, counted and tried afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind, StepEffect


def quantize_graph(
    source: Path,
    target: Path,
    per_channel: bool,
    reduce_range: bool | Literal["auto"],
    keep: Sequence[str],
    context: BuildContext,
) -> StepEffect:
    """Quantize every ``MatMul`` and ``Gemm`` with a constant matrix, except those in ``keep``; write ``target``.

    Embedding tables (``Gather``) stay float. Raises:
        ExperimentError: ``bad_model`` for non-finite weights or a result that does not load, ``no_effect`` if no node
            was quantized, ``unsupported`` if a pattern in ``keep`` matches nothing.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from experiments.parts import int8_range
    from experiments.parts.finite import in_words
    from experiments.parts.int8_torch import kept_in_words
    from experiments.parts.layer_patterns import matched
    from experiments.parts.onnx_graph import (
        DATA,
        LIMIT,
        check_graph,
        layer_name,
        linear_nodes,
        load_graph,
        name_nodes,
        non_finite_counts,
        save_graph,
        weights_bytes,
    )
    from experiments.parts.onnx_probe import open_quietly

    started = time.monotonic()
    check_graph(source)
    reduce, why = int8_range.reduce_range(reduce_range, context.isa)
    model = load_graph(source)
    if counts := non_finite_counts(model):
        raise ExperimentError(
            FailureKind.BAD_MODEL, f"the model has non-finite weights: {in_words(counts)}", tensors=counts
        )
    name_nodes(model)
    nodes, tied = linear_nodes(model)
    layers = {node.name: layer_name(node) for node in nodes}
    kept = {
        name: f"shares its tensor with {table}; kept float, tie intact, counted once" for name, table in tied.items()
    }
    asked = matched(keep, list(layers.values()) + list(tied))
    excluded = [node for node, layer in layers.items() if layer in asked]
    kept |= {layers[node]: f"asked for by keep: '{asked[layers[node]]}'" for node in excluded}
    named = context.work / "int8-source"
    named.mkdir(parents=True, exist_ok=True)
    save_graph(model, named / "model.onnx")
    del model
    large = weights_bytes(source) > LIMIT
    (target.parent / DATA).unlink(missing_ok=True) if target.parent != source.parent else None
    root_level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)  # its advice to pre-process speaks of static quantization
    try:
        quantize_dynamic(
            named / "model.onnx",
            named / "quantized.onnx",
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=per_channel,
            reduce_range=reduce,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=excluded,
            use_external_data_format=large,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logging.getLogger().setLevel(root_level)
    result = load_graph(named / "quantized.onnx")
    still = {node.name for node in linear_nodes(result)[0]}
    changed = sum(1 for node in result.graph.node if node.op_type == "MatMulInteger")
    total = len(layers) + len(tied)
    for node, layer in layers.items():
        if node in still and layer not in kept:
            kept[layer] = "ONNX Runtime left it float (a Gemm with alpha, beta or a transposed input)"
    if not changed:
        inner = _inner_products(result)
        where = f"; {inner} matrix products lie inside Loop or If bodies, which are not quantized" if inner else ""
        raise ExperimentError(
            FailureKind.NO_EFFECT,
            f"int8-dynamic changed nothing: 0 of {total} linear layers quantized{where}",
            fix="Name fewer layers in keep, or remove int8-dynamic from the recipe.",
        )
    save_graph(result, target)
    try:
        open_quietly(target, context.threads)
    except Exception as error:  # onnxruntime's exceptions share no public base
        first = str(error).strip().splitlines()[0]
        raise ExperimentError(FailureKind.BAD_MODEL, f"result does not load after int8-dynamic: {first}") from error
    return StepEffect(
        technique="int8-dynamic",
        summary=f"{changed} of {total} linear layers quantized{kept_in_words(kept)}; embeddings kept float; {why}",
        changed=changed,
        of=total,
        kept=kept,
        seconds=time.monotonic() - started,
    )


def _inner_products(model: object) -> int:
    from experiments.parts.onnx_graph import graphs

    inner = list(graphs(model.graph))[1:]  # type: ignore[attr-defined]
    return sum(1 for graph in inner for node in graph.node if node.op_type in ("MatMul", "Gemm"))
