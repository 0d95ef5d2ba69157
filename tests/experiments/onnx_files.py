"""Small ONNX graphs made by hand, for what exporters never write but people upload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

FLOAT = TensorProto.FLOAT


def matrix(name: str, values: Any) -> Any:
    """A float32 initializer."""
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


def write(path: Path, nodes: Sequence[Any], weights: Sequence[Any], width: int = 4, out: str = "y") -> Path:
    """Write a graph from ``x`` (batch, width) to ``out``."""
    ends = [helper.make_tensor_value_info(name, FLOAT, ["batch_size", width]) for name in ("x", out)]
    graph = helper.make_graph(list(nodes), "graph", ends[:1], ends[1:], list(weights))
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def product(name: str, left: str, right: str, out: str) -> Any:
    """A MatMul node."""
    return helper.make_node("MatMul", [left, right], [out], name=name)


def loop_with_product(path: Path) -> Path:
    """Two rounds of ``v = v W`` inside a Loop body."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), product("inner", "v", "W", "w")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", FLOAT, None),
        ],
        [matrix("W", np.eye(4))],
    )
    rounds = numpy_helper.from_array(np.array(2, np.int64), "rounds")
    go = numpy_helper.from_array(np.array(True), "yes")
    return write(path, [helper.make_node("Loop", ["rounds", "yes", "x"], ["y"], name="loop", body=body)], [rounds, go])
