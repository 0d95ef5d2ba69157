"""Reading, writing and checking ONNX files; weights above protobuf's 2 GB limit go to external data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from experiments.records import ExperimentError, FailureKind

MODEL = "model.onnx"
#: External data always has this name, whatever the graph file is called: renaming the graph doesn't break the link.
DATA = "model.onnx_data"
#: A protobuf message ends at 2 GiB; graph structure and rounding get the rest.
LIMIT = 1_900_000_000


def load_graph(path: Path, weights: bool = True) -> onnx.ModelProto:
    """The model in ``path``, with its external data unless ``weights`` is False.

    Raises:
        ExperimentError: ``bad_model`` if the file is not ONNX or its external data is missing.
    """
    try:
        return onnx.load(str(path), load_external_data=weights)
    except Exception as error:  # protobuf, OS and checker errors have no common base
        raise ExperimentError(FailureKind.BAD_MODEL, f"'{path.name}' is not a readable ONNX model: {error}") from error


def save_graph(model: onnx.ModelProto, path: Path, limit: int = LIMIT) -> None:
    """Write ``model`` to ``path``; above ``limit`` bytes the weights go to ``model.onnx_data`` beside it."""
    data = path.parent / DATA
    data.unlink(missing_ok=True)  # onnx appends to an existing file
    if sum(_size(t) for t in model.graph.initializer) > limit:
        onnx.save(
            model,
            str(path),
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=DATA,
            size_threshold=1024,
            convert_attribute=False,
        )
    else:
        onnx.save(model, str(path))


def check_graph(path: Path) -> None:
    """Refuse a file that breaks the ONNX rules, before anything is done with it.

    Raises:
        ExperimentError: ``bad_model`` naming the initializer that is defined twice, or what the checker found.
    """
    model = load_graph(path, weights=False)
    for graph in graphs(model.graph):
        seen: set[str] = set()
        for tensor in graph.initializer:
            if tensor.name in seen:
                raise ExperimentError(
                    FailureKind.BAD_MODEL,
                    f"'{path.name}' defines the initializer '{tensor.name}' twice",
                    fix="Export the model again; which of the two tensors is meant can't be known.",
                )
            seen.add(tensor.name)
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        first = str(error).strip().splitlines()[0]
        raise ExperimentError(FailureKind.BAD_MODEL, f"'{path.name}' is not a valid ONNX model: {first}") from error


def read_whole(source: Path) -> onnx.ModelProto:
    """The checked graph of ``source`` with its weights, all finite; every node of the main graph has a name of its own.

    Raises:
        ExperimentError: ``bad_model`` for a broken file or non-finite weights.
    """
    from experiments.parts.finite import in_words

    check_graph(source)
    model = load_graph(source)
    if counts := non_finite_counts(model):
        raise ExperimentError(
            FailureKind.BAD_MODEL, f"the model has non-finite weights: {in_words(counts)}", tensors=counts
        )
    name_nodes(model)
    return model


def require_loads(path: Path, technique: str, threads: int) -> None:
    """Open the finished graph once.

    Raises:
        ExperimentError: ``bad_model`` if ONNX Runtime does not take it.
    """
    from experiments.parts.onnx_probe import open_quietly

    try:
        open_quietly(path, threads)
    except Exception as error:  # onnxruntime's exceptions share no public base
        first = str(error).strip().splitlines()[0]
        raise ExperimentError(FailureKind.BAD_MODEL, f"result does not load after {technique}: {first}") from error


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """``graph`` and all graphs inside its nodes (bodies of Loop, If, Scan)."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from graphs(inner)


def weight_tensors(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """(name, tensor) of every initializer and every constant, inner graphs included."""
    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            yield tensor.name, tensor
        for node in graph.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        yield node.output[0], attribute.t


def weights_bytes(path: Path) -> int:
    """Bytes of all weight tensors in the file, external data included; a shared initializer counts once."""
    return sum(_size(tensor) for _, tensor in weight_tensors(load_graph(path, weights=False)))


def parameter_count(path: Path) -> int:
    """Elements of floating and integer weight tensors with more than one dimension's worth of data (biases included).

    Index constants of shape arithmetic (int64) are not parameters.
    """
    model = load_graph(path, weights=False)
    skipped = {onnx.TensorProto.INT64, onnx.TensorProto.BOOL}
    return sum(int(np.prod(t.dims)) for t in model.graph.initializer if t.data_type not in skipped)


def _size(tensor: onnx.TensorProto) -> int:
    elements = int(np.prod(tensor.dims)) if tensor.dims else 1
    if tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
        return (elements + 1) // 2
    return elements * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def non_finite_counts(model: onnx.ModelProto) -> dict[str, int]:
    """Initializer name -> number of NaN and infinite values, for those that have any (infinite mask scalars aside)."""
    counts = {}
    floating = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.data_type in floating:
                values = numpy_helper.to_array(tensor).astype(np.float32, copy=False)
                bad = int(values.size - np.isfinite(values).sum())
                if bad and values.size > 1:  # a lone -inf is an attention mask's constant
                    counts[tensor.name] = bad
    return counts


def name_nodes(model: onnx.ModelProto) -> None:
    """Give every unnamed or equally named node of the main graph a name of its own."""
    taken: set[str] = set()
    for number, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}_{number}"
        taken.add(node.name)


def sort_nodes(model: onnx.ModelProto) -> None:
    """Put the nodes of the main graph into an order in which every value is made before it is used."""
    made = {v.name for v in (*model.graph.input, *model.graph.initializer)} | {""}
    waiting = list(model.graph.node)
    produced = {name for node in waiting for name in node.output}
    ordered: list[onnx.NodeProto] = []
    while waiting:
        ready = []
        later = []
        for node in waiting:
            if all(name in made or name not in produced for name in _taken(node)):
                ready.append(node)
                made.update(node.output)
            else:
                later.append(node)
        if not ready:
            raise ExperimentError(FailureKind.BAD_MODEL, f"the graph has a cycle at node '{waiting[0].name}'")
        ordered += ready
        waiting = later
    del model.graph.node[:]
    model.graph.node.extend(ordered)


def _taken(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, those read inside its bodies included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            for child in inner.node:
                yield from _taken(child)


def layer_name(node: onnx.NodeProto) -> str:
    """The module path that a node was exported from: '/encoder/layer.0/dense/MatMul' -> 'encoder.layer.0.dense'."""
    parts = [part for part in node.name.split("/") if part]
    return ".".join(parts[:-1]) if len(parts) > 1 else node.name


def linear_nodes(model: onnx.ModelProto) -> tuple[list[onnx.NodeProto], dict[str, str]]:
    """Nodes that multiply by a constant matrix, and layer name -> name of the shared tensor for tied output heads.

    A tied head multiplies by the transpose of the embedding table, so its matrix is computed, not constant.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    made_by = {output: node for node in model.graph.node for output in node.output}
    linear: list[onnx.NodeProto] = []
    tied: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type not in ("MatMul", "Gemm") or len(node.input) < 2:
            continue
        matrix = _through_identity(node.input[1], made_by)
        if matrix in constants:
            linear.append(node)
        elif matrix in made_by and made_by[matrix].op_type == "Transpose":
            table = _through_identity(made_by[matrix].input[0], made_by)
            if table in constants:
                tied[layer_name(node)] = table
    return linear, tied


def _through_identity(name: str, made_by: dict[str, Any]) -> str:
    while name in made_by and made_by[name].op_type == "Identity":
        name = made_by[name].input[0]
    return name
