"""AWQ in an ONNX graph: who reads a value is known there, so a factor is folded wherever that is exact."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper, numpy_helper

from experiments.parts.awq import channel_scales

if TYPE_CHECKING:
    import torch

    from experiments.parts.nbits_graph import Matrix
    from experiments.parts.weight_only import Coder


@dataclass
class Folded:
    """Where the factors of a graph went: how many groups of layers each."""

    norms: int = 0
    products: int = 0
    inputs: int = 0
    none: int = 0

    def in_words(self) -> str:
        """E.g. '60 factors in norms, 30 in the layer before, 30 as input scales'."""
        ways = ((self.norms, "in norms"), (self.products, "in the layer before"), (self.inputs, "as input scales"))
        told = ", ".join(f"{count} {where}" for count, where in ways if count)
        return f"input factors: {told or 'none was better than 1'}"


def scale_channels(model: onnx.ModelProto, matrices: Sequence[Matrix], coder: Coder) -> Folded:
    """Scale the weights of ``matrices`` in place for rounding, and undo it in what feeds them."""
    groups: dict[str, list[Matrix]] = defaultdict(list)
    for matrix in matrices:
        groups[matrix.node.input[0]].append(matrix)
    graph = _Graph(model, {matrix.node.name: matrix for matrix in matrices})
    folded = Folded()
    for value, group in groups.items():
        found = [inputs for matrix in group if (inputs := coder.inputs(matrix.layer)) is not None]
        scales = channel_scales([m.weight for m in group], found[0], coder.how.grid) if found else None
        if scales is None:
            folded.none += 1
            continue
        for matrix in group:
            matrix.weight = matrix.weight * scales
        if graph.only_read_by(value, group) and graph.into_norm(value, scales):
            folded.norms += 1
        elif graph.only_read_by(value, group) and graph.into_product(value, scales):
            folded.products += 1
        else:
            graph.as_input_scale(value, group, scales)
            folded.inputs += 1
    return folded


class _Graph:
    """Values with their makers and readers."""

    def __init__(self, model: onnx.ModelProto, matrices: Mapping[str, Matrix]) -> None:
        self._model = model
        self._matrices = matrices
        self._made_by = {output: node for node in model.graph.node for output in node.output}
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._outputs = {value.name for value in model.graph.output}
        self._readers: dict[str, list[str]] = defaultdict(list)
        from experiments.parts.onnx_graph import graphs

        for graph in graphs(model.graph):
            for node in graph.node:
                for name in node.input:
                    self._readers[name].append(node.name if graph is model.graph else "")
        self._number = 0

    def only_read_by(self, value: str, group: Sequence[Matrix]) -> bool:
        """True if nothing but the layers of ``group`` reads ``value``."""
        return value not in self._outputs and set(self._readers[value]) <= {matrix.node.name for matrix in group}

    def into_norm(self, value: str, scales: torch.Tensor) -> bool:
        """Divide the gain (and shift) of the norm that made ``value``, if one did."""
        maker = self._made_by.get(value)
        if maker is None:
            return False
        if maker.op_type == "LayerNormalization":
            return self._divide(maker, range(1, len(maker.input)), scales)
        if maker.op_type == "Mul":
            return self._divide(maker, self._vectors(maker, scales)[:1], scales)
        if maker.op_type == "Add":
            shift = self._vectors(maker, scales)[:1]
            gain = self._made_by.get(maker.input[1 - shift[0]]) if shift else None
            if gain is None or gain.op_type != "Mul" or len(self._readers[gain.output[0]]) != 1:
                return False
            where = self._vectors(gain, scales)[:1]
            return bool(where) and self._divide(gain, where, scales) and self._divide(maker, shift, scales)
        return False

    def into_product(self, value: str, scales: torch.Tensor) -> bool:
        """Divide the rows of the layer whose output is a factor of ``value``, if there is one."""
        maker = self._made_by.get(value)
        if maker is None or maker.op_type != "Mul":
            return False
        for name in maker.input:
            layer = self._made_by.get(name)
            matrix = self._matrices.get(layer.name) if layer is not None else None
            if matrix is not None and not matrix.bias and len(self._readers[name]) == 1:
                matrix.weight = matrix.weight / scales.unsqueeze(1)
                return True
        return False

    def as_input_scale(self, value: str, group: Sequence[Matrix], scales: torch.Tensor) -> None:
        """Divide ``value`` on its way to the layers of ``group``."""
        self._number += 1
        factor, scaled = f"awq_factor_{self._number}", f"{value}_awq_{self._number}"
        self._model.graph.initializer.append(numpy_helper.from_array((1 / scales).numpy(), factor))
        first = next(i for i, node in enumerate(self._model.graph.node) if node.name == group[0].node.name)
        self._model.graph.node.insert(first, helper.make_node("Mul", [value, factor], [scaled], name=f"{scaled}_mul"))
        for matrix in group:
            matrix.node.input[0] = scaled

    def _vectors(self, node: Any, scales: torch.Tensor) -> list[int]:
        """Positions of inputs of ``node`` that are constant vectors of the channels."""
        return [
            position
            for position, name in enumerate(node.input)
            if name in self._weights and tuple(self._weights[name].dims) == tuple(scales.shape)
        ]

    def _divide(self, node: Any, positions: Sequence[int], scales: torch.Tensor) -> bool:
        """Give ``node`` its own, divided copies of the constant vectors at ``positions``."""
        vectors = set(self._vectors(node, scales))
        if not positions or not vectors.issuperset(positions):
            return False
        for position in positions:
            self._number += 1
            name = f"{node.input[position]}_awq_{self._number}"
            array = numpy_helper.to_array(self._weights[node.input[position]]) / scales.numpy()
            self._model.graph.initializer.append(numpy_helper.from_array(array, name))
            node.input[position] = name
        return True
