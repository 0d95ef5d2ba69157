"""All kinds of packed layers, by the name that an artifact calls them. A new kind is one line here."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.parts.packed_layer import PackedLayer

#: ``PackedLayer.method`` -> module and class; imported only where an artifact has such layers.
_KINDS = {
    "sparse-2-4-linear": "experiments.parts.sparse_2_4_linear:Sparse24Linear",
    "dynamic-int8-linear": "experiments.parts.quantized_linear:DynamicInt8Linear",
    "weight-only-int8-linear": "experiments.parts.weight_only_linear:WeightOnlyInt8Linear",
    "weight-only-int4-linear": "experiments.parts.weight_only_linear:WeightOnlyInt4Linear",
    "fp8-linear": "experiments.parts.fp8_linear:Fp8Linear",
    "int8-embedding": "experiments.parts.int8_embedding:Int8Embedding",
}


def packed_layers(module: Any) -> dict[str, PackedLayer]:
    """Dotted name -> packed layer, for all of them in ``module``."""
    from experiments.parts.packed_layer import PackedLayer

    return {name: child for name, child in module.named_modules() if isinstance(child, PackedLayer)}


def packed_kinds(methods: Iterable[str]) -> dict[str, type[PackedLayer]]:
    """Method name -> class.

    Raises:
        ValueError: for a name that this version does not know.
    """
    kinds = {}
    for method in sorted(set(methods)):
        if method not in _KINDS:
            raise ValueError(f"there is no packed layer called {method!r}; known are {', '.join(sorted(_KINDS))}")
        module, _, name = _KINDS[method].partition(":")
        kinds[method] = getattr(import_module(module), name)
    return kinds
