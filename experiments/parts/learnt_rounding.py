"""Training through a quantizer's rounding, so that the weights learn to live with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from experiments.parts.layer_patterns import matched
from experiments.parts.linear_layers import linear_layers, swap
from experiments.parts.quantizer import Quantizer
from experiments.parts.tied_weights import tied_names
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    from experiments.protocols import BuildContext, Technique


@contextmanager
def rounded_layers(module: Any, through: Technique | None, context: BuildContext) -> Iterator[int]:
    """Every linear layer computes as ``through`` would make it, until the block ends; gives how many do.

    The weights stay what they are: rounding happens in the forward pass, gradients pass as if it were the identity.
    Layers that the quantizer is told to keep stay exact, and so do heads that share their tensor with an embedding.

    Source: Jacob et al., arXiv:1712.05877; straight-through gradients, Bengio et al., arXiv:1308.3432.

    Raises:
        ExperimentError: ``unsupported`` if ``through`` can't be simulated, or keeps a layer that is not there.
    """
    if through is None:
        yield 0
        return
    if not isinstance(through, Quantizer):
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"training can't learn to live with {through.technique}: what it does to a layer can't be simulated",
            fix=f"Put the training before {through.technique}.",
            field="recipe",
        )
    layers, _ = linear_layers(module)
    kept = matched(through.keep, [layer.name for layer in layers])
    tied = tied_names(module)
    shared = set(tied) | set(tied.values())
    chosen = [layer for layer in layers if layer.name not in kept and f"{layer.name}.weight" not in shared]
    try:
        for layer in chosen:
            swap(module, layer.name, through.simulated(layer, context))
        yield len(chosen)
    finally:
        for layer in chosen:
            swap(module, layer.name, layer.module)
