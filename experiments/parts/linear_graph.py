"""The linear layers of an ONNX graph, sorted into those to quantize and those to keep: how all its quantizers begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import onnx


@dataclass
class LinearGraph:
    """A checked graph.

    Attributes:
        model: the graph with its weights; every node of the main graph has a name of its own.
        layers: node name -> layer name, for nodes that multiply by a constant matrix and, where they were asked for,
            convolutions with constant kernels.
        tied: layer name -> the table that a tied output head shares.
        excluded: names of the nodes that ``keep`` asks to leave float.
        kept: layer name -> why it stays float.
        asked: name of an embedding table -> the pattern in ``keep`` that names it.
    """

    model: onnx.ModelProto
    layers: dict[str, str]
    tied: dict[str, str]
    excluded: list[str]
    kept: dict[str, str]
    asked: dict[str, str]

    @property
    def total(self) -> int:
        """All layers that could be quantized, tied heads included."""
        return len(self.layers) + len(self.tied)


def open_linear_graph(
    source: Path, keep: Sequence[str], *, embeddings: bool = False, convolutions: bool = False
) -> LinearGraph:
    """Read and check ``source``; patterns in ``keep`` may name embedding tables too if ``embeddings``.

    Raises:
        ExperimentError: ``bad_model`` for a broken file or non-finite weights, ``unsupported`` if a pattern in ``keep``
            matches nothing.
    """
    from experiments.parts.embedding_nodes import embedding_nodes
    from experiments.parts.layer_patterns import matched
    from experiments.parts.onnx_graph import layer_name, linear_nodes, read_whole

    model = read_whole(source)
    nodes, tied = linear_nodes(model)
    nodes += convolution_nodes(model) if convolutions else []
    layers = {node.name: layer_name(node) for node in nodes}
    kept = {
        name: f"shares its tensor with {table}; kept float, tie intact, counted once" for name, table in tied.items()
    }
    tables = list(embedding_nodes(model)[0]) if embeddings else []
    asked = matched(keep, [*layers.values(), *tied, *tables])
    excluded = [node for node, layer in layers.items() if layer in asked]
    kept |= {layers[node]: f"asked for by keep: '{asked[layers[node]]}'" for node in excluded}
    return LinearGraph(model, layers, tied, excluded, kept, {name: asked[name] for name in tables if name in asked})


def convolution_nodes(model: onnx.ModelProto) -> list[Any]:
    """Convolutions whose kernels are constant."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [node for node in model.graph.node if node.op_type == "Conv" and node.input[1] in constants]


def nothing_changed(technique: str, graph: LinearGraph, result: onnx.ModelProto, fix: str) -> ExperimentError:
    """The failure of a quantizer that quantized no layer, with where products may hide."""
    from experiments.parts.onnx_graph import graphs

    inner = list(graphs(result.graph))[1:]
    hidden = sum(1 for g in inner for node in g.node if node.op_type in ("MatMul", "Gemm"))
    where = f"; {hidden} matrix products lie inside Loop or If bodies, which are not quantized" if hidden else ""
    return ExperimentError(
        FailureKind.NO_EFFECT,
        f"{technique} changed nothing: 0 of {graph.total} linear layers quantized{where}",
        fix=fix,
    )
