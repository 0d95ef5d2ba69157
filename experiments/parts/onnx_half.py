"""Conversion of an ONNX graph to float16, with the checks that the converter itself does not make (FC-077)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind, Label, StepEffect

LARGEST_HALF = 65504.0
#: Values above it are attention masks (the lowest float32), which the converter clamps; activations never get there.
MASK = 1e30


def convert_to_half(source: Path, target: Path, keep: Sequence[str], context: BuildContext) -> StepEffect:
    """Convert ``source`` to float16 and write ``target``. Inputs and outputs keep their types, the cache does not.

    Overflow is looked for in the float32 graph: the CPU provider computes wide and would hide it.

    Raises:
        ExperimentError: ``bad_model`` for non-finite source weights or a result that does not load, ``canary`` naming
            the initializer or node that overflows, ``no_effect`` if nothing was converted.
    """
    import onnx
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    from experiments.parts.finite import in_words
    from experiments.parts.onnx_graph import load_graph, name_nodes, non_finite_counts, save_graph
    from experiments.parts.onnx_probe import open_quietly

    started = time.monotonic()
    model = load_graph(source)
    name_nodes(model)
    if counts := non_finite_counts(model):
        raise ExperimentError(FailureKind.BAD_MODEL, f"the model has non-finite weights: {in_words(counts)}", tensors=counts)
    _refuse_overflow(model, source, keep, context)
    before = _float_elements(model)
    cached = ("past_key_values.", "present.")
    floats = (onnx.TensorProto.FLOAT,)
    ends = [
        v.name
        for v in (*model.graph.input, *model.graph.output)
        if v.type.tensor_type.elem_type in floats and not v.name.startswith(cached)
    ]
    half = convert_float_to_float16(
        _with_shapes(model, source),
        keep_io_types=ends,
        disable_shape_infer=True,
        op_block_list=[*DEFAULT_OP_BLOCK_LIST, *keep],
        min_positive_val=5.96e-08,
        max_finite_val=LARGEST_HALF,
    )
    after = _float_elements(half)
    changed = sum(1 for name in before if name not in after)
    if not changed:
        raise ExperimentError(
            FailureKind.NO_EFFECT,
            f"fp16 changed nothing: 0 of {len(before)} float32 weight tensors converted",
            fix="Remove fp16 from the recipe, or keep fewer operators.",
        )
    save_graph(half, target)
    try:
        open_quietly(target, context.threads)
    except Exception as error:  # onnxruntime's exceptions share no public base
        raise ExperimentError(FailureKind.BAD_MODEL, f"result does not load after fp16: {_first_line(error)}") from error
    wide, narrow = _computed(target, context)
    summary = f"{changed} of {len(before)} weight tensors converted to float16"
    label = None
    if wide > narrow:
        label = Label.WEIGHT_ONLY
        summary += (
            f"; {wide} of {wide + narrow} matrix products are computed in float32, because ONNX Runtime's CPU provider "
            "has no float16 kernel for them here: stored small, computed wide"
        )
    left = {name: "operator kept in float32 (no float16 kernel, or asked for)" for name in before if name in after}
    return StepEffect(
        technique="fp16",
        summary=summary,
        changed=changed,
        of=len(before),
        kept=left,
        label=label,
        seconds=time.monotonic() - started,
    )


def _refuse_overflow(model: Any, source: Path, keep: Sequence[str], context: BuildContext) -> None:
    """Raise if a weight, or a value on the probe inputs, is finite in float32 and too large for float16."""
    import onnx
    from onnx import numpy_helper

    from experiments.parts.artifact_card import read_config
    from experiments.parts.onnx_probe import open_quietly, synthetic_inputs, values_of_all_nodes

    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = np.abs(numpy_helper.to_array(tensor))
            too_large = int(((values > LARGEST_HALF) & (values < MASK)).sum())
            if too_large:
                raise ExperimentError(
                    FailureKind.CANARY,
                    f"weights overflow in fp16 (largest value {LARGEST_HALF:.0f}): {tensor.name} ({too_large} values)",
                    fix="Choose int8-dynamic, or bf16 with runtime torch-eager.",
                )
    feeds = context.probe
    if feeds is None:
        config = read_config(source.parent) if (source.parent / "config.json").is_file() else {}
        feeds = synthetic_inputs(open_quietly(source, context.threads), config, context.seed)
    for node, _, value in values_of_all_nodes(source, feeds, context.threads, context.work):
        if value.dtype != np.float32 or not value.size or any(f"({kind})" in node for kind in keep):
            continue
        sizes = np.abs(value[np.isfinite(value)])
        largest = float(sizes[sizes < MASK].max(initial=0.0))
        if largest > LARGEST_HALF:
            raise ExperimentError(
                FailureKind.CANARY,
                f"non-finite output in fp16 at node {node}: it reaches {largest:.6g}, the largest float16 is 65504",
                fix="Add the operator to fp16's keep, or choose int8-dynamic, or bf16 with runtime torch-eager.",
                node=node,
                largest=largest,
            )


def _float_elements(model: Any) -> set[str]:
    """Names of float32 weight tensors with more than one element (scalars are settings, not weights)."""
    import onnx

    return {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and np.prod(t.dims) > 1}


def _with_shapes(model: Any, source: Path) -> Any:
    """``model`` with inferred types; through the file where it is too large to be one message."""
    import onnx

    from experiments.parts.onnx_graph import LIMIT, weights_bytes

    if weights_bytes(source) <= LIMIT:
        return onnx.shape_inference.infer_shapes(model)
    inferred = source.with_suffix(".inferred.onnx")
    onnx.shape_inference.infer_shapes_path(str(source), str(inferred))
    shaped = onnx.load(str(inferred))
    inferred.unlink()
    return shaped


def _computed(path: Path, context: BuildContext) -> tuple[int, int]:
    """Matrix products that ORT really computes in float32 and in float16 on this CPU, from its optimized graph."""
    import onnx
    import onnxruntime

    optimized = context.work / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = context.threads
    options.optimized_model_filepath = str(optimized)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimized.data")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    model = onnx.load(str(optimized), load_external_data=False)
    types = {t.name: t.data_type for t in model.graph.initializer}
    products = [n for n in model.graph.node if n.op_type in ("MatMul", "Gemm", "FusedMatMul", "FusedGemm")]
    weights = [types.get(n.input[1]) for n in products]
    for leftover in (optimized, context.work / "optimized.data"):
        leftover.unlink(missing_ok=True)
    return weights.count(onnx.TensorProto.FLOAT), weights.count(onnx.TensorProto.FLOAT16)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
