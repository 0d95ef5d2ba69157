"""Weight-only quantization of an ONNX graph: matrix products become MatMulNBits."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.parts.weight_only import Coder, WeightOnly
from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind, StepEffect

if TYPE_CHECKING:
    import torch

    from experiments.parts.calibration import LayerInputs


@dataclass
class Matrix:
    """A product with a constant matrix.

    Attributes:
        layer: the module path that the node was exported from.
        initializer: the tensor in the graph.
        weight: float32 (out, in); a step before rounding may change it.
        bias: name of a Gemm's own bias, or ''.
        table: it is a tied output head: the tensor is an embedding table.
    """

    node: Any
    layer: str
    initializer: str
    weight: torch.Tensor
    bias: str = ""
    table: bool = False


def quantize_graph(
    source: Path, target: Path, how: WeightOnly, keep: Sequence[str], context: BuildContext
) -> StepEffect:
    """Store the matrices of every ``MatMul`` and ``Gemm``, except those in ``keep``, as codes; write ``target``.

    A tied output head (``how.head``): ``own-codes`` gives it codes beside the float table, ``shared-codes`` lets the
    embedding read the same codes, ``float`` leaves both. Raises:
        ExperimentError: ``bad_model`` for non-finite weights or a result that does not load, ``no_effect`` if no node
            was quantized, ``unsupported`` if a pattern in ``keep`` matches nothing.
    """
    from experiments.parts.layer_patterns import matched
    from experiments.parts.nbits_nodes import drop_unread
    from experiments.parts.onnx_graph import layer_name, linear_nodes, read_whole, require_loads, save_graph
    from experiments.parts.summaries import kept_in_words, no_layer_quantized

    started = time.monotonic()
    model = read_whole(source)
    nodes, tied = linear_nodes(model)
    layers = [*map(layer_name, nodes), *tied]
    asked = matched(keep, layers)
    kept = {layer: f"asked for by keep: '{pattern}'" for layer, pattern in asked.items()}
    if how.head == "float":
        kept |= {layer: f"shares its tensor with {table}; kept float, tie intact" for layer, table in tied.items()}
    matrices = _matrices(model, nodes, {} if how.head == "float" else tied, kept)
    if not matrices:
        raise no_layer_quantized(how.technique, len(layers), kept)
    coder = Coder(how, _statistics(how, context))
    notes = [coder_words] if (coder_words := _scaled(model, matrices, coder)) else []
    notes += _coded(model, matrices, coder, context)
    drop_unread(model)
    save_graph(model, target)
    require_loads(target, how.technique, context.threads)
    narrow = how.accuracy_level == 4 and context.device == "cpu"
    products = "products in 8 bits where the CPU has a kernel for it" if narrow else "products in the inputs' own type"
    told = "; ".join([coder.in_words(), *notes, products])
    return StepEffect(
        technique=how.technique,
        summary=f"{len(matrices)} of {len(layers)} linear layers stored in {how.grid.bits} bits, one scale for "
        f"{how.grid.group} weights{kept_in_words(kept)}; {told}",
        changed=len(matrices),
        of=len(layers),
        kept=kept,
        warnings=coder.warnings(),
        seconds=time.monotonic() - started,
    )


def _statistics(how: WeightOnly, context: BuildContext) -> Mapping[str, LayerInputs]:
    """What the layers of the module behind the graph are fed, if the method asks for it."""
    if not how.calibrates:
        return {}
    from experiments.parts.calibration import input_statistics

    if context.module is None:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"{how.method} needs the torch module that this graph was exported from, and there is none",
            fix="Choose method rtn or hqq.",
            field="recipe.method",
        )
    return input_statistics(context.module(), context, samples=how.samples)


def _matrices(model: Any, nodes: Sequence[Any], tied: Mapping[str, str], kept: dict[str, str]) -> list[Matrix]:
    """All products that can be narrow and are not in ``kept``, which gets the reasons of the others."""
    import torch
    from onnx import numpy_helper

    from experiments.parts.onnx_graph import layer_name

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    made_by = {output: node for node in model.graph.node for output in node.output}
    found = []
    for node in [*nodes, *(n for n in model.graph.node if n.op_type == "MatMul" and layer_name(n) in tied)]:
        layer = layer_name(node)
        if layer in kept:
            continue
        table = tied.get(layer)
        name = table or _behind_identity(node.input[1], made_by)
        array = numpy_helper.to_array(weights[name])
        if why := _unfit(node, array):
            kept[layer] = why
            continue
        stored_out_first = table is not None or _attribute(node, "transB", 0) == 1
        weight = torch.from_numpy(array.astype("float32") if stored_out_first else array.T.astype("float32"))
        bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else ""
        found.append(Matrix(node, layer, name, weight, bias, table is not None))
    return found


def _unfit(node: Any, array: Any) -> str | None:
    """Why a product can't become a MatMulNBits, or None."""
    if array.ndim != 2:
        return f"its weight has {array.ndim} dimensions"
    if array.dtype != "float32":
        return f"its weight is {array.dtype}"
    gemm = node.op_type == "Gemm"
    if gemm and (
        _attribute(node, "alpha", 1) != 1 or _attribute(node, "beta", 1) != 1 or _attribute(node, "transA", 0)
    ):
        return "a Gemm with alpha, beta or a transposed input"
    return None


def _attribute(node: Any, name: str, default: float) -> float:
    import onnx

    return next((float(onnx.helper.get_attribute_value(a)) for a in node.attribute if a.name == name), default)


def _behind_identity(name: str, made_by: Mapping[str, Any]) -> str:
    while name in made_by and made_by[name].op_type == "Identity":
        name = made_by[name].input[0]
    return name


def _scaled(model: Any, matrices: Sequence[Matrix], coder: Coder) -> str:
    """AWQ's factors; what became of them, in words."""
    if coder.how.method != "awq":
        return ""
    from experiments.parts.awq_graph import scale_channels

    free = [m for m in matrices if not (m.table and coder.how.head == "shared-codes")]
    return scale_channels(model, free, coder).in_words()


def _coded(model: Any, matrices: Sequence[Matrix], coder: Coder, context: BuildContext) -> list[str]:
    """Replace the nodes of ``matrices``; what became of tied heads, in words."""
    from experiments.parts.nbits_nodes import add_codes, product_node, replace_node

    notes = []
    for number, matrix in enumerate(matrices):
        lookups = _lookups(model, matrix.initializer) if matrix.table and coder.how.head == "shared-codes" else []
        codes = coder.codes(matrix.layer, matrix.weight, plainly=bool(lookups))
        names = add_codes(model, f"{matrix.layer}_{coder.how.grid.bits}bit", codes)
        replace_node(model, matrix.node, product_node(matrix.node, names, codes, coder.how.accuracy_level, matrix.bias))
        if matrix.table:
            notes.append(_head_in_words(model, matrix, names, codes, lookups, coder.how))
        context.progress(
            0.5 + 0.5 * (number + 1) / len(matrices), f"{matrix.layer} stored in {coder.how.grid.bits} bits"
        )
    return notes


def _head_in_words(
    model: Any, matrix: Matrix, names: list[str], codes: Any, lookups: Collection[Any], how: WeightOnly
) -> str:
    """Let the embedding read the head's codes where asked for; what then holds, with its bytes."""
    from experiments.parts.nbits_nodes import packed_codes, share_with_lookup

    if len(lookups) == 1 and matrix.weight.shape[1] % how.grid.group == 0:
        share_with_lookup(model, next(iter(lookups)), names, codes)
        return f"{matrix.layer} and the embedding read the same codes"
    more = packed_codes(codes).nbytes + codes.scales.numel() * 4
    why = "" if how.head == "own-codes" else " (it can't share them: its rows are no whole number of blocks)"
    return f"{matrix.layer} has codes of its own beside the float embedding{why}: {more / 2**20:,.1f} MiB more"


def _lookups(model: Any, table: str) -> list[Any]:
    return [node for node in model.graph.node if node.op_type == "Gather" and node.input[0] == table]
