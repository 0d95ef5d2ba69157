"""Embedding tables of an ONNX graph: found, and stored as 8-bit codes that a lookup widens row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    import numpy.typing as npt

#: Largest magnitude of a code; -128 is left out so that the range is symmetric.
QMAX = 127


def embedding_nodes(model: onnx.ModelProto) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Name -> lookups (``Gather``) of one float table that nothing else reads, and name -> why for the other tables.

    A table that a tied output head reads too is of the latter kind: making it narrow would break the tie.
    """
    from experiments.parts.onnx_graph import layer_name

    tables = {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) == 2}
    source = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input if node.op_type != "Identity" else ():
            while name in source:
                name = source[name]
            if name in tables:
                readers.setdefault(name, []).append(node)
    found: dict[str, list[Any]] = {}
    shared: dict[str, str] = {}
    for nodes in readers.values():
        lookups = [node for node in nodes if _is_lookup(node)]
        others = [node for node in nodes if not _is_lookup(node)]
        if lookups and others:
            shared[layer_name(lookups[0])] = (
                f"shares its tensor with {layer_name(others[0])}; kept float, tie intact, counted once"
            )
        elif lookups:
            found[layer_name(lookups[0])] = lookups
    return found, shared


def _is_lookup(node: Any) -> bool:
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return bool(node.op_type == "Gather" and axis == 0)


def narrow_table(table: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """(rows, width) -> symmetric int8 codes and one float32 scale a row, (rows, 1). A row of zeros gets scale 1."""
    largest = np.abs(table).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / QMAX, 1).astype(np.float32)
    return np.clip(np.rint(table / scales), -QMAX, QMAX).astype(np.int8), scales


def quantize_tables(model: onnx.ModelProto, asked: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Store the embedding tables of ``model`` as int8, all but those in ``asked``; a lookup widens what it took.

    Returns the names of the tables that are narrow now, and name -> why for those that are not.
    """
    found, kept = embedding_nodes(model)
    kept |= {name: f"asked for by keep: '{pattern}'" for name, pattern in asked.items() if name in found}
    narrow = [name for name in found if name not in asked]
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    source = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    done: set[str] = set()
    for name in narrow:
        for node in found[name]:
            table = node.input[0]
            while table in source:
                table = source[table]
            if table not in done:
                codes, scales = narrow_table(numpy_helper.to_array(weights[table]))
                model.graph.initializer.remove(weights[table])
                model.graph.initializer.append(numpy_helper.from_array(codes, f"{table}_int8"))
                model.graph.initializer.append(numpy_helper.from_array(scales, f"{table}_row_scale"))
                done.add(table)
            _widen_after(model, node, table)
    _drop_dead_identities(model, done)
    return narrow, kept


def _widen_after(model: onnx.ModelProto, lookup: Any, table: str) -> None:
    """Gather codes and scales, and multiply them, in place of ``lookup``."""
    at = next(i for i, node in enumerate(model.graph.node) if node is lookup or node.name == lookup.name)
    ids, out, name = lookup.input[1], lookup.output[0], lookup.name
    nodes = [
        helper.make_node("Gather", [f"{table}_int8", ids], [f"{out}_int8"], name=name, axis=0),
        helper.make_node("Gather", [f"{table}_row_scale", ids], [f"{out}_scale"], name=f"{name}_scale", axis=0),
        helper.make_node("Cast", [f"{out}_int8"], [f"{out}_wide"], name=f"{name}_cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{out}_wide", f"{out}_scale"], [out], name=f"{name}_widen"),
    ]
    del model.graph.node[at]
    for offset, node in enumerate(nodes):
        model.graph.node.insert(at + offset, node)


def _drop_dead_identities(model: onnx.ModelProto, gone: set[str]) -> None:
    for node in [n for n in model.graph.node if n.op_type == "Identity" and n.input[0] in gone]:
        model.graph.node.remove(node)
