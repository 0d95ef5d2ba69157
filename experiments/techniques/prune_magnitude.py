"""Magnitude pruning: the weights nearest to zero become zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from experiments.parts.mask_pruner import MaskPruner
from experiments.protocols import BuildContext, Textbook

if TYPE_CHECKING:
    from experiments.parts.linear_layers import LinearLayer


class PruneMagnitude(MaskPruner):
    """Set the smallest weights of the blocks' linear layers to zero; no data is needed.

    Embeddings, poolers and output heads are left alone. The result is a mask: neither smaller nor faster.
    """

    title = "Magnitude pruning"
    summary = "Sets the smallest weights to zero, per layer or over all layers at once; needs no data."
    origin = "Han et al., Learning both Weights and Connections for Efficient Neural Networks, arXiv:1506.02626"

    technique: Literal["prune-magnitude"] = "prune-magnitude"
    amount: float = Field(default=0.5, gt=0, lt=1, description="Share of the weights that become zero, e.g. 0.5.")
    scope: Literal["layer", "global"] = Field(
        default="layer",
        description="'layer': every layer loses this share; 'global': the smallest weights of all layers together.",
    )

    textbook = Textbook(
        latency="faster only where a sparse kernel runs",
        size="2x to 10x fewer weights at 50 to 90 %, small only in a sparse file format",
        quality="no loss after retraining (AlexNet 9x, VGG-16 13x)",
        shrink=(2.0, 10.0),
        loss=(0.0, 0.01),
    )

    def zero(self, layers: list[LinearLayer], module: Any, context: BuildContext) -> tuple[str, ...]:
        """See ``MaskPruner.zero``."""
        import torch

        from experiments.parts.masks import smallest

        with torch.no_grad():
            if self.scope == "layer":
                for number, layer in enumerate(layers):
                    mask = smallest(layer.weight.abs(), round(self.amount * layer.weight.numel()))
                    layer.weight.masked_fill_(mask, 0)
                    context.progress((number + 1) / len(layers))
                return ()
            scores = torch.cat([layer.weight.abs().reshape(-1) for layer in layers])
            mask = smallest(scores, round(self.amount * scores.numel()))
            start = 0
            for layer in layers:
                own = mask[start : start + layer.weight.numel()]
                layer.weight.masked_fill_(own.reshape(layer.weight.shape), 0)
                start += layer.weight.numel()
            return ()
