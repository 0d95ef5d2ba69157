"""Moves outliers of activations into the weights of an ONNX graph, so that both can be rounded; answers stay the same.

``x W = (x / s) (s W)`` with one ``s`` a channel (Xiao et al., SmoothQuant, arXiv:2211.10438). Dividing costs nothing
where what makes ``x`` can take it: the scale of a norm, or the matrix before a gated product. Elsewhere one
multiplication is put before the layers that read ``x``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from experiments.parts.linear_graph import LinearGraph


@dataclass(frozen=True)
class Smoothed:
    """What was done: layers whose inputs were smoothed, how many by what is before them, and why the others not."""

    folded: tuple[str, ...]
    multiplied: tuple[str, ...]
    left: dict[str, str]

    def in_words(self) -> str:
        """E.g. 'inputs of 120 layers smoothed in the norms and products before them, of 30 by a multiplication'."""
        parts = []
        if self.folded:
            parts.append(f"inputs of {len(self.folded)} layers smoothed for free in the norm or product before them")
        if self.multiplied:
            parts.append(f"inputs of {len(self.multiplied)} layers smoothed by a multiplication before them")
        if self.left:
            name, why = next(iter(self.left.items()))
            parts.append(f"{len(self.left)} layers not smoothed ({name}: {why})")
        return "; ".join(parts)


def smooth_graph(
    graph: LinearGraph, largest: Mapping[str, npt.NDArray[np.float32]], alpha: float, everywhere: bool
) -> Smoothed:
    """Smooth the inputs of all layers of ``graph`` that will be quantized, in place.

    Args:
        graph: an opened graph.
        largest: value -> (width,) largest magnitude of each channel on calibration rows.
        alpha: 0 leaves outliers in the activations, 1 moves them into the weights.
        everywhere: also where a multiplication must be put in.
    """
    return _Smoothing(graph, largest, alpha, everywhere).run()


class _Smoothing:
    def __init__(
        self, graph: LinearGraph, largest: Mapping[str, npt.NDArray[np.float32]], alpha: float, everywhere: bool
    ) -> None:
        self._graph, self._model = graph, graph.model
        self._largest, self._alpha, self._everywhere = largest, alpha, everywhere
        self._weights = {tensor.name: tensor for tensor in self._model.graph.initializer}
        self._made = {name: node for node in self._model.graph.node for name in node.output}
        self._readers: dict[str, list[Any]] = {}
        for node in self._model.graph.node:
            for name in set(node.input):
                self._readers.setdefault(name, []).append(node)
        self._outputs = {slot.name for slot in self._model.graph.output}
        self._folded: list[str] = []
        self._multiplied: list[str] = []
        self._left: dict[str, str] = {}

    def run(self) -> Smoothed:
        groups: dict[str, list[Any]] = {}
        excluded = set(self._graph.excluded)
        for node in self._model.graph.node:
            if node.name in self._graph.layers and node.name not in excluded:
                if why := self._unfit(node):
                    self._left[self._graph.layers[node.name]] = why
                else:
                    groups.setdefault(node.input[0], []).append(node)
        for value, nodes in groups.items():
            self._smooth(value, nodes)
        return Smoothed(tuple(self._folded), tuple(self._multiplied), self._left)

    def _unfit(self, node: Any) -> str | None:
        weight = self._weights.get(node.input[1])
        if node.op_type == "Conv":
            return "a convolution"
        if weight is None or len(weight.dims) != 2 or _flag(node, "transA"):
            return "its matrix is not a plain constant"
        if len(self._readers[node.input[1]]) > 1:
            return "its matrix is shared"
        if node.input[0] not in self._largest or len(self._largest[node.input[0]]) != self._width(node):
            return "its inputs have no channels of their own"
        return None

    def _width(self, node: Any) -> int:
        dims = self._weights[node.input[1]].dims
        return int(dims[1] if _flag(node, "transB") else dims[0])

    def _smooth(self, value: str, nodes: list[Any]) -> None:
        names = [self._graph.layers[node.name] for node in nodes]
        scale = self._scale(value, nodes)
        if self._fold(value, nodes, scale):
            self._folded += names
        elif self._everywhere:
            self._multiply(value, nodes, scale)
            self._multiplied += names
        else:
            self._left |= dict.fromkeys(names, "no norm or product before it can take the division")
            return
        for node in nodes:
            wide = scale[None, :] if _flag(node, "transB") else scale[:, None]
            self._change(node.input[1], wide)

    def _scale(self, value: str, nodes: list[Any]) -> npt.NDArray[np.float32]:
        """(width,) as ``parts.rounding.smoothing``, over all layers that read ``value``."""
        inputs = self._largest[value]
        weights = np.zeros_like(inputs)
        for node in nodes:
            matrix = np.abs(numpy_helper.to_array(self._weights[node.input[1]]))
            weights = np.maximum(weights, matrix.max(axis=0 if _flag(node, "transB") else 1))
        alive = (inputs > 0) & (weights > 0)
        scale = np.where(alive, inputs, 1) ** self._alpha / np.where(alive, weights, 1) ** (1 - self._alpha)
        return np.where(alive, np.maximum(scale, 1e-5), 1).astype(np.float32)

    def _fold(self, value: str, nodes: list[Any], scale: npt.NDArray[np.float32]) -> bool:
        """Let what makes ``value`` divide it, if nothing but ``nodes`` would notice."""
        made = self._source(value, nodes)
        if made is None:
            return False
        inverse = (1 / scale).astype(np.float32)
        if made.op_type == "LayerNormalization":
            parts = [name for name in made.input[1:] if name]
            return self._divide(parts, inverse, made)
        if made.op_type != "Mul":
            return False
        for name in made.input:
            if constant := self._constant(name):
                return list(self._weights[constant].dims) == [len(scale)] and self._divide([name], inverse, made)
        for name in made.input:  # a gated product: act(gate) * up
            before = self._made.get(name)
            if before is not None and before.op_type == "MatMul" and self._alone(name, [made]):
                return self._divide([before.input[1]], inverse[None, :], before)
        return False

    def _source(self, value: str, nodes: list[Any]) -> Any:
        """The node that makes ``value`` for ``nodes`` alone, seen through a change of shape that keeps channels."""
        if not self._alone(value, nodes):
            return None
        made = self._made.get(value)
        if made is not None and made.op_type == "Reshape":
            before = made.input[0]
            inner = self._made.get(before)
            if inner is None or inner.op_type != "LayerNormalization" or not self._alone(before, [made]):
                return None
            constant = self._constant(inner.input[1])
            channels = list(self._weights[constant].dims) if constant else []
            return inner if channels == [len(self._largest[value])] else None
        return made

    def _alone(self, value: str, nodes: list[Any]) -> bool:
        known = {node.name for node in nodes}
        others = [n for n in self._readers.get(value, []) if n.name not in known and n.op_type != "Shape"]
        return not others and value not in self._outputs

    def _divide(self, names: list[str], inverse: npt.NDArray[np.float32], reader: Any) -> bool:
        """Multiply the constants ``names`` of ``reader`` by ``inverse``; False if one is no constant of its own.

        Equal vectors of several norms may be one constant in the graph: then ``reader`` gets a copy.
        """
        found = {name: self._constant(name) for name in names}
        shared = {
            name: constant != name or any(node.name != reader.name for node in self._readers[name])
            for name, constant in found.items()
        }
        if any(found[name] is None or (shared[name] and inverse.ndim > 1) for name in names):
            return False
        for name, constant in found.items():
            self._change(self._copied(name, constant, reader) if shared[name] else name, inverse)
        return True

    def _constant(self, name: str) -> str | None:
        """The constant behind ``name``, or None; the exporter writes equal constants once and gives aliases."""
        while name in self._made and self._made[name].op_type == "Identity":
            name = self._made[name].input[0]
        return name if name in self._weights else None

    def _copied(self, name: str, constant: str | None, reader: Any) -> str:
        assert constant is not None, "the caller has looked"
        own = f"{name}_of_{reader.name}"
        copy = numpy_helper.from_array(numpy_helper.to_array(self._weights[constant]), own)
        self._model.graph.initializer.append(copy)
        self._weights[own] = self._model.graph.initializer[-1]
        for slot, known in enumerate(reader.input):
            if known == name:
                reader.input[slot] = own
        return own

    def _change(self, name: str, by: npt.NDArray[np.float32]) -> None:
        tensor = self._weights[name]
        changed = (numpy_helper.to_array(tensor) * by).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed), name))

    def _multiply(self, value: str, nodes: list[Any], scale: npt.NDArray[np.float32]) -> None:
        smooth = f"{value}_smooth"
        self._model.graph.initializer.append(numpy_helper.from_array(1 / scale, f"{value}_smoothing"))
        names = {node.name for node in nodes}
        first = next(n for n, node in enumerate(self._model.graph.node) if node.name in names)
        multiply = helper.make_node("Mul", [value, f"{value}_smoothing"], [smooth], name=f"{smooth}/Mul")
        self._model.graph.node.insert(first, multiply)
        for node in nodes:
            node.input[0] = smooth


def _flag(node: onnx.NodeProto, name: str) -> bool:
    return any(attribute.name == name and attribute.i for attribute in node.attribute)
