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
NORM = "part of a norm: computed in float32, as in the model's own half-precision code"
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
    from experiments.parts.onnx_graph import (
        load_graph,
        name_nodes,
        non_finite_counts,
        require_loads,
        save_graph,
        sort_nodes,
    )

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
    name_nodes(half)  # a value taken twice by a wide node gets two casts of one name
    after = _float_weights(half)
    changed = sum(1 for name in before if name not in after)
    if not changed:
        raise ExperimentError(
            FailureKind.NO_EFFECT,
            f"fp16 changed nothing: 0 of {len(before)} float32 weight tensors converted",
            fix="Remove fp16 from the recipe, or keep fewer operators.",
        )
    save_graph(half, target)
    require_loads(target, "fp16", context.threads)
    _refuse_overflow(target, feeds, largest, context)
    summary = f"{changed} of {len(before)} weight tensors converted to float16"
    if wide:
        summary += f", {len(wide)} nodes of norms or near its limit kept in float32"
    label = None
    if context.device == "cpu" and not _computes_half(context.threads):
        label = Label.WEIGHT_ONLY
        summary += (
            f"; all {_products(half)} matrix products are computed in float32, because ONNX Runtime's CPU provider has "
            "no float16 kernel for them on this machine: stored small, computed wide"
        )
    left = dict.fromkeys(sorted(before & after), "used by an operator that stays in float32")
    return StepEffect(
        technique="fp16",
        summary=summary,
        changed=changed,
        of=len(before),
        kept={**left, **_grouped(wide)},
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
    """The first rows and tokens of the builder's real inputs if it has some, else synthetic ones."""
    from experiments.parts.artifact_card import read_config
    from experiments.parts.onnx_probe import LENGTH, ROWS, complete_inputs, open_quietly, synthetic_inputs

    session = open_quietly(source, context.threads)
    if context.probe is not None:
        some = {
            name: array[:ROWS, :LENGTH] if array.ndim == 2 else array[:ROWS] for name, array in context.probe.items()
        }
        return complete_inputs(session, some)
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
        size = max(sizes.values(), default=0.0)
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


def _grouped(wide: dict[str, str]) -> dict[str, str]:
    """``wide`` with each reason's nodes as one entry, since a decoder has hundreds; a lone node keeps its name."""
    near = {name: reason for name, reason in wide.items() if reason != NORM}
    norms = len(wide) - len(near)
    grouped = near if len(near) <= 3 else {f"{len(near)} nodes near the limit": f"first {next(iter(near.items()))[1]}"}
    return {**grouped, f"norms ({norms} nodes)": NORM} if norms else grouped


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
            found[node.name] = NORM
            for name in node.input:  # small constants (epsilon) would be rounded away
                if name in makers and makers[name].op_type == "Constant":
                    found[makers[name].name] = NORM
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
    """Join neighbours that both stay in float32: the converter narrows and widens again between them.

    Where a wide node takes one value twice, the converter also defines the same cast twice; one is dropped.
    """
    import onnx

    made: set[str] = set()
    for node in list(model.graph.node):
        if made.intersection(node.output):
            model.graph.node.remove(node)
        made.update(node.output)
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


def _products(model: Any) -> int:
    """Matrix products of the graph, activations with activations included."""
    return sum(1 for node in model.graph.node if node.op_type in ("MatMul", "Gemm"))


def _computes_half(threads: int) -> bool:
    """True if ONNX Runtime's CPU provider multiplies float16 matrices on this machine as they are.

    Seen on a graph of one product: without a kernel, the provider takes the node only between casts to float32,
    which its optimized graph shows.
    """
    import tempfile

    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [64, 64]) for name in ("a", "b", "c")]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "one-product", shapes[:2], shapes[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        optimized = onnx.load(options.optimized_model_filepath)
    return not any(node.op_type == "Cast" for node in optimized.graph.node)
