"""Nodes of ONNX Runtime that read packed codes: MatMulNBits and GatherBlockQuantized (domain com.microsoft)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from experiments.parts.block_codes import BlockCodes

DOMAIN = "com.microsoft"


def packed_codes(codes: BlockCodes) -> npt.NDArray[np.uint8]:
    """(out, blocks, bytes of a block): two 4-bit codes a byte, the first in the low half.

    The last block of a row is filled up with its zero point.
    """
    out, width = codes.codes.shape
    blocks, group = codes.scales.shape[1], codes.grid.group
    zeros = codes.zeros.numpy()
    full = np.repeat(zeros, group, axis=1)
    full[:, :width] = codes.codes.numpy()
    return pack(full, codes.grid.bits).reshape(out, blocks, group * codes.grid.bits // 8)


def pack(values: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Codes along the last axis into bytes; an odd 4-bit row gets one more code, 0."""
    if bits == 8:
        return np.ascontiguousarray(values)
    odd = values.shape[-1] % 2
    even = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, odd)])
    return np.bitwise_or(even[..., 0::2], np.left_shift(even[..., 1::2], np.uint8(4))).astype(np.uint8)


def add_codes(model: onnx.ModelProto, name: str, codes: BlockCodes) -> list[str]:
    """Put codes, scales and (if any) zero points into the graph; their names, as the nodes take them."""
    names = [f"{name}_codes", f"{name}_scales"]
    tensors = [packed_codes(codes), codes.scales.numpy()]
    if not codes.grid.symmetric:
        names.append(f"{name}_zeros")
        tensors.append(pack(codes.zeros.numpy(), codes.grid.bits))
    model.graph.initializer.extend(numpy_helper.from_array(t, n) for t, n in zip(tensors, names, strict=True))
    if not any(entry.domain == DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return names


def product_node(node: Any, names: list[str], codes: BlockCodes, accuracy_level: int, bias: str = "") -> Any:
    """What takes the place of the MatMul or Gemm ``node``."""
    inputs = [node.input[0], *names]
    if bias:
        inputs += [""] * (5 - len(inputs)) + [bias]
    out, width = codes.codes.shape
    product = helper.make_node(
        "MatMulNBits",
        inputs,
        list(node.output),
        name=node.name,
        domain=DOMAIN,
        N=out,
        K=width,
        bits=codes.grid.bits,
        block_size=codes.grid.group,
    )
    if accuracy_level:  # 0 is the default, and providers that know no levels refuse the attribute
        product.attribute.append(helper.make_attribute("accuracy_level", accuracy_level))
    return product


def share_with_lookup(model: onnx.ModelProto, lookup: Any, names: list[str], codes: BlockCodes) -> None:
    """Let ``lookup`` (a Gather of the table) read the very codes of the output head.

    The head takes them as (out, blocks, bytes), the lookup as rows: they are stored as rows and reshaped in the graph,
    which ONNX Runtime does once, when it loads it.
    """
    rows, shaped = f"{names[0]}_rows", names[0]
    stored = next(tensor for tensor in model.graph.initializer if tensor.name == shaped)
    array = numpy_helper.to_array(stored)
    model.graph.initializer.remove(stored)
    model.graph.initializer.append(numpy_helper.from_array(array.reshape(len(array), -1), rows))
    model.graph.initializer.append(numpy_helper.from_array(np.array(array.shape, np.int64), f"{shaped}_shape"))
    reshape = helper.make_node("Reshape", [rows, f"{shaped}_shape"], [shaped], name=f"{shaped}_reshape")
    gather = helper.make_node(
        "GatherBlockQuantized",
        [rows, lookup.input[1], *names[1:]],
        list(lookup.output),
        name=lookup.name,
        domain=DOMAIN,
        bits=codes.grid.bits,
        block_size=codes.grid.group,
        gather_axis=0,
        quantize_axis=1,
    )
    replace_node(model, lookup, gather)
    model.graph.node.insert(0, reshape)


def replace_node(model: onnx.ModelProto, old: Any, new: Any) -> None:
    """Put ``new`` where ``old`` stands."""
    at = next(i for i, node in enumerate(model.graph.node) if node.name == old.name and node.output == old.output)
    del model.graph.node[at]
    model.graph.node.insert(at, new)


def drop_unread(model: onnx.ModelProto) -> None:
    """Remove transposes, identities and weights that nothing reads any more."""
    outputs = {value.name for value in model.graph.output}
    while True:
        read = set(_reads(model.graph)) | outputs
        idle = [
            node
            for node in model.graph.node
            if node.op_type in ("Transpose", "Identity") and not read.intersection(node.output)
        ]
        if not idle:
            break
        for node in idle:
            model.graph.node.remove(node)
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in read]:
        model.graph.initializer.remove(tensor)


def _reads(graph: onnx.GraphProto) -> Iterator[str]:
    from experiments.parts.onnx_graph import graphs

    for inner in graphs(graph):
        for node in inner.node:
            yield from node.input
        if inner is not graph:
            yield from (value.name for value in inner.output)
