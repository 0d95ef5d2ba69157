"""Inputs to try a graph with, and where in it a value stops being finite."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.parts.decoding import position_ids
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy.typing as npt

ROWS = 2
LENGTH = 32
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
_PAST = re.compile(r"^past_key_values\.")


def synthetic_inputs(session: Any, config: Mapping[str, Any], seed: int) -> dict[str, npt.NDArray[Any]]:
    """Seeded inputs for every non-cache input of an ORT session: random token ids, standard normal pixels.

    ``config`` is the model's config.json (vocabulary and image sizes); dimensions that neither names are 2.
    """
    rng = np.random.default_rng(seed)
    length = min(LENGTH, int(config.get("max_position_embeddings") or config.get("n_positions") or LENGTH))
    named = {"batch_size": ROWS, "sequence_length": length}
    named["num_channels"] = int(config.get("num_channels", 3))
    size = config.get("image_size", 8)
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    named |= {"height": height, "width": width}
    inputs: dict[str, npt.NDArray[Any]] = {}
    for slot in session.get_inputs():
        if _PAST.match(slot.name):
            continue
        shape = tuple(
            d if isinstance(d, int) else named.get(str(d), length if "sequence" in str(d) else 2) for d in slot.shape
        )
        dtype = _DTYPES[slot.type]
        if slot.name == "input_ids":
            inputs[slot.name] = rng.integers(0, int(config.get("vocab_size", 2)), shape).astype(dtype)
        elif slot.name == "attention_mask":
            inputs[slot.name] = np.ones(shape, dtype)
        elif slot.name == "position_ids":
            inputs[slot.name] = np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
        elif np.issubdtype(dtype, np.floating):
            inputs[slot.name] = rng.standard_normal(shape).astype(dtype)
        else:
            inputs[slot.name] = np.zeros(shape, dtype)
    return inputs


def empty_past(session: Any, rows: int) -> dict[str, npt.NDArray[Any]]:
    """A key-value cache of length 0 for every cache input: (rows, heads, 0, width per head)."""
    past: dict[str, npt.NDArray[Any]] = {}
    for slot in session.get_inputs():
        if _PAST.match(slot.name):
            shape = [d if isinstance(d, int) else (rows if axis == 0 else 0) for axis, d in enumerate(slot.shape)]
            past[slot.name] = np.zeros(shape, _DTYPES[slot.type])
    return past


def complete_inputs(session: Any, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Exactly the non-cache inputs that the graph wants, in its types.

    Masks, positions and token types that are absent are derived from ``input_ids``.

    Raises:
        ExperimentError: ``unsupported`` naming an input that can't be derived.
    """
    complete: dict[str, npt.NDArray[Any]] = {}
    for slot in session.get_inputs():
        if _PAST.match(slot.name):
            continue
        if slot.name in inputs:
            array = inputs[slot.name]
        elif slot.name == "attention_mask" and "input_ids" in inputs:
            array = np.ones(inputs["input_ids"].shape, np.int64)
        elif slot.name == "position_ids" and "input_ids" in inputs:
            mask = inputs.get("attention_mask")
            array = position_ids(np.ones(inputs["input_ids"].shape, np.int64) if mask is None else mask)
        elif slot.name == "token_type_ids" and "input_ids" in inputs:
            array = np.zeros(inputs["input_ids"].shape, np.int64)
        else:
            raise ExperimentError(
                FailureKind.UNSUPPORTED,
                f"the graph wants an input '{slot.name}', and there are only {', '.join(inputs) or 'none'}",
            )
        complete[slot.name] = np.ascontiguousarray(array, dtype=_DTYPES[slot.type])
    return complete


def with_dtypes(session: Any, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """``feeds`` in the types that ``session`` wants (a converted graph may want others)."""
    wanted = {slot.name: _DTYPES[slot.type] for slot in session.get_inputs()}
    return {name: array.astype(wanted[name], copy=False) for name, array in feeds.items()}


def input_dtype(slot: Any) -> Any:
    """The numpy dtype of an input of an ORT session."""
    return _DTYPES[slot.type]


def open_quietly(model: Path | bytes, threads: int) -> Any:
    """An ORT session on the CPU that logs only errors.

    ``model`` is a path or a serialized graph.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    target = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(target, options, providers=["CPUExecutionProvider"])


def values_of_all_nodes(path: Path, feeds: Mapping[str, npt.NDArray[Any]], threads: int, work: Path) -> Any:
    """Yield (node, output name, value) of every floating-point value of the main graph, in execution order.

    A graph over protobuf's limit is written to ``work`` for it, with every value as an output.
    """
    import onnx

    from experiments.parts.onnx_graph import LIMIT, load_graph, name_nodes, save_graph, weights_bytes

    model = onnx.shape_inference.infer_shapes(load_graph(path))
    name_nodes(model)
    floating = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}
    known = {v.name: v.type.tensor_type.elem_type for v in (*model.graph.value_info, *model.graph.output)}
    outputs = {v.name for v in model.graph.output}
    order = [
        (node.name, node.op_type, name)
        for node in model.graph.node
        for name in node.output
        if known.get(name) in floating
    ]
    for _, _, name in order:
        if name not in outputs:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, known[name], None))
    if weights_bytes(path) <= LIMIT:
        session = open_quietly(model.SerializeToString(), threads)
    else:
        folder = work / "all-values"
        folder.mkdir(parents=True, exist_ok=True)
        save_graph(model, folder / "all.onnx")
        session = open_quietly(folder / "all.onnx", threads)
    del model
    rows = next(iter(feeds.values())).shape[0]
    complete = {**empty_past(session, rows), **feeds}
    for start in range(0, len(order), 64):  # in groups, so that not all values are held at once
        part = order[start : start + 64]
        for (node, kind, name), value in zip(part, session.run([n for _, _, n in part], complete), strict=True):
            yield f"{node} ({kind})", name, value


def first_non_finite_node(path: Path, feeds: Mapping[str, npt.NDArray[Any]], threads: int) -> str | None:
    """Name of the first node, in execution order, with a NaN or positive infinity (-inf is what masks hold), or None.

    Float16 values count as float16 even where the CPU provider computes them wide.
    """
    with tempfile.TemporaryDirectory() as work:
        for node, _, value in values_of_all_nodes(path, feeds, threads, Path(work)):
            if bool(np.isnan(value).any() or np.isposinf(value).any()):
                return str(node)
    return None
