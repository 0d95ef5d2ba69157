"""Conversion of an ONNX graph to float16, with the checks that the converter itself does not make (FC-077)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind, Label, StepEffect

LARGEST_HALF = 65504.0
#: Values above it are attention masks (the lowest float32), which the converter clamps; activations never get there.
MASK = 1e30
#: Cheap operators whose values come this near to the limit stay in float32: the probe sees only a few rows.
MARGIN = 64.0
#: Operators that carry the work; keeping them wide would take back what the step is for.
HEAVY = frozenset({"MatMul", "Gemm", "Conv", "FusedMatMul", "Attention"})
_NORM = frozenset({"ReduceMean", "Add", "Sqrt", "Div", "Reciprocal"})
ELSE = "Choose int8-dynamic, or bf16 with runtime torch-eager, whose range is that of float32."


def convert_to_half(source: Path, target: Path, keep: Sequence[str], context: BuildContext) -> StepEffect:
    """Convert ``source`` to float16 and write ``target``. Inputs and outputs keep their types, the cache does not.

    The converter itself clamps large weights and lets values overflow in silence. So the float32 graph is run on the
    probe first: cheap operators that come near the limit (squares in norms) stay in float32 as in the model's own
    half-precision code, and a matrix product that passes it is an error. The result is run on the probe as well.

    Raises:
        ExperimentError: ``bad_model`` for non-finite source weights or a result that does not load, ``canary`` naming
            the initializer or node that overflows, ``no_effect`` if nothing was converted.
    """
    import onnx
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    from experiments.parts.finite import in_words
    from experiments.parts.onnx_graph import load_graph, name_nodes, non_finite_counts, save_graph, sort_nodes
    from experiments.parts.onnx_probe import open_quietly

    started = time.monotonic()
    model = load_graph(source)
    name_nodes(model)
    if counts := non_finite_counts(model):
        raise ExperimentError(
            FailureKind.BAD_MODEL, f"the model has non-finite weights: {in_words(counts)}", tensors=counts
        )
    _refuse_large_weights(model)
    feeds = _probe(source, context)
    largest = _largest_values(source, feeds, context)
    wide = _wide_nodes(model, largest, keep)
    before = _float_weights(model)
    ends = [
        v.name
        for v in (*model.graph.input, *model.graph.output)
        if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        and not v.name.startswith(("past_key_values.", "present."))
    ]
    half = convert_float_to_float16(
        _with_shapes(model, source),
        keep_io_types=ends,
        disable_shape_infer=True,
        op_block_list=[*DEFAULT_OP_BLOCK_LIST, *keep],
        node_block_list=list(wide),
        min_positive_val=5.96e-08,
        max_finite_val=LARGEST_HALF,
    )
    _drop_cast_pairs(half)
    sort_nodes(half)
    after = _float_weights(half)
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
        first = str(error).strip().splitlines()[0]
        raise ExperimentError(FailureKind.BAD_MODEL, f"result does not load after fp16: {first}") from error
    _refuse_overflow(target, feeds, largest, context)
    in_float, in_half = _computed(target, context)
    summary = f"{changed} of {len(before)} weight tensors converted to float16"
    if wide:
        summary += f", {len(wide)} cheap nodes kept in float32 near its limit"
    label = None
    if in_float > in_half:
        label = Label.WEIGHT_ONLY
        summary += (
            f"; {in_float} of {in_float + in_half} matrix products are computed in float32, because ONNX Runtime's CPU "
            "provider has no float16 kernel for them here: stored small, computed wide"
        )
    left = {name: "used by an operator that stays in float32" for name in sorted(before & after)}
    return StepEffect(
        technique="fp16",
        summary=summary,
        changed=changed,
        of=len(before),
        kept={**left, **wide},
        label=label,
        seconds=time.monotonic() - started,
    )


def _refuse_large_weights(model: Any) -> None:
    import onnx
    from onnx import numpy_helper

    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = np.abs(numpy_helper.to_array(tensor))
            too_large = int(((values > LARGEST_HALF) & (values < MASK)).sum())
            if too_large:
                raise ExperimentError(
                    FailureKind.CANARY,
                    f"weights overflow in fp16 (largest value {LARGEST_HALF:.0f}): {tensor.name} ({too_large} values)",
                    fix=ELSE,
                )


def _probe(source: Path, context: BuildContext) -> Mapping[str, Any]:
    """Real inputs if the builder has some, else synthetic ones."""
    from experiments.parts.artifact_card import read_config
    from experiments.parts.onnx_probe import complete_inputs, open_quietly, synthetic_inputs

    session = open_quietly(source, context.threads)
    if context.probe is not None:
        return complete_inputs(session, context.probe)
    config = read_config(source.parent) if (source.parent / "config.json").is_file() else {}
    return synthetic_inputs(session, config, context.seed)


def _largest_values(path: Path, feeds: Mapping[str, Any], context: BuildContext) -> dict[str, float]:
    """Value name -> largest magnitude in the float32 graph; infinite where a mask is (-inf) part of the value."""
    from experiments.parts.onnx_probe import values_of_all_nodes

    return {
        name: float(np.abs(value).max(initial=0.0))
        for _, name, value in values_of_all_nodes(path, feeds, context.threads, context.work)
        if value.dtype == np.float32
    }


def _wide_nodes(model: Any, largest: dict[str, float], keep: Sequence[str]) -> dict[str, str]:
    """Node name -> why it must stay in float32: it makes or takes a value near float16's limit.

    Raises:
        ExperimentError: ``canary`` if a matrix product makes or takes a value above the limit.
    """
    wide = _norm_nodes(model)
    for node in model.graph.node:
        sizes = {name: largest[name] for name in (*node.output, *node.input) if largest.get(name, MASK) < MASK}
        name, size = max(sizes.items(), key=lambda item: item[1], default=("", 0.0))
        if node.op_type in keep or size <= LARGEST_HALF / MARGIN:
            continue
        if node.op_type not in HEAVY:
            wide[node.name] = f"{node.op_type}: reaches {size:.6g} on the probe, the largest float16 is 65504"
        elif size > LARGEST_HALF:
            raise ExperimentError(
                FailureKind.CANARY,
                f"non-finite output in fp16 at node {node.name} ({node.op_type}): it reaches {size:.6g}, "
                "the largest float16 is 65504",
                fix=ELSE,
                node=node.name,
                largest=size,
            )
    return wide


def _norm_nodes(model: Any) -> dict[str, str]:
    """The nodes of decomposed norms, from the square to the division: squares leave float16 at both of its ends."""
    takers: dict[str, list[Any]] = {}
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        for name in node.input:
            takers.setdefault(name, []).append(node)
    found: dict[str, str] = {}
    for square in (node for node in model.graph.node if node.op_type == "Pow"):
        chain = [square]
        while chain:
            node = chain.pop()
            found[node.name] = f"{node.op_type}: part of a norm, computed in float32 as in the model's own half-precision code"
            for name in node.input:  # small constants (epsilon) would be rounded away
                if name in makers and makers[name].op_type == "Constant":
                    found[makers[name].name] = "Constant: part of a norm"
            if node.op_type not in ("Div", "Reciprocal"):
                after = [taker for name in node.output for taker in takers.get(name, [])]
                if all(taker.op_type in _NORM for taker in after):
                    chain += after
    return found


def _refuse_overflow(path: Path, feeds: Mapping[str, Any], largest: dict[str, float], context: BuildContext) -> None:
    """Raise if a float16 value of the result is not finite where the float32 graph had an ordinary number."""
    from experiments.parts.onnx_probe import open_quietly, values_of_all_nodes, with_dtypes

    inputs = with_dtypes(open_quietly(path, context.threads), feeds)
    for node, name, value in values_of_all_nodes(path, inputs, context.threads, context.work):
        if value.dtype == np.float16 and largest.get(name, MASK) < MASK and not np.isfinite(value).all():
            raise ExperimentError(FailureKind.CANARY, f"non-finite output in fp16 at node {node}", fix=ELSE, node=node)


def _drop_cast_pairs(model: Any) -> None:
    """Join neighbours that both stay in float32: the converter narrows and widens again between them."""
    import onnx

    narrowed = {node.output[0]: node.input[0] for node in model.graph.node if _casts_to(node, onnx.TensorProto.FLOAT16)}
    ends = {v.name for v in model.graph.output}
    joined = {}
    for node in list(model.graph.node):
        if _casts_to(node, onnx.TensorProto.FLOAT) and node.input[0] in narrowed and node.output[0] not in ends:
            joined[node.output[0]] = narrowed[node.input[0]]
            model.graph.node.remove(node)
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = joined.get(name, name)
    used = {name for node in model.graph.node for name in node.input} | ends
    for node in list(model.graph.node):
        if node.op_type == "Cast" and node.output[0] in narrowed and node.output[0] not in used:
            model.graph.node.remove(node)


def _casts_to(node: Any, kind: int) -> bool:
    """True for casts that the converter inserted; the model's own casts have their own names."""
    return (
        node.op_type == "Cast" and "_cast" in node.name and any(a.name == "to" and a.i == kind for a in node.attribute)
    )


def _float_weights(model: Any) -> set[str]:
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
