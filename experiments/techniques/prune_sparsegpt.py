"""SparseGPT: prunes and adjusts the remaining weights, so that each layer's output changes least."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from experiments.parts.calibrated_pruner import CalibratedPruner, names_in_words, never_fed
from experiments.protocols import BuildContext, Textbook

if TYPE_CHECKING:
    from experiments.parts.linear_layers import LinearLayer


class PruneSparseGPT(CalibratedPruner):
    """Set weights of the blocks' linear layers to zero, block of columns by block, and correct the remaining ones.

    The correction uses the Hessian of the layer's squared output error, which is the second moment of its inputs, as
    the model fed it before this step (the paper takes it after the earlier blocks are pruned). Embeddings, poolers
    and output heads are left alone. The result is a mask: neither smaller nor faster.
    """

    title = "SparseGPT pruning"
    summary = "Sets weights to zero and adjusts the others so that each layer's output changes least; needs rows."
    origin = "Frantar and Alistarh, SparseGPT, arXiv:2301.00774"

    technique: Literal["prune-sparsegpt"] = "prune-sparsegpt"
    amount: float = Field(default=0.5, gt=0, lt=1, description="Share of the weights that become zero, e.g. 0.5.")
    block_size: int = Field(default=128, ge=1, le=4096, description="Columns whose weights are chosen together.")
    damping: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="Added to the Hessian's diagonal, as a share of its mean; raised where it can't be inverted.",
    )

    textbook = Textbook(
        latency="faster only where a sparse kernel runs",
        size="half of the weights at 50 %, small only in a sparse file format",
        quality="0.5 to 9 % lower zero-shot accuracy at 50 % (the larger the model the less), without any training",
        shrink=(2.0, 2.0),
        loss=(0.0, 0.09),
    )

    def detail(self) -> str:
        """How much the Hessians were damped."""
        return f", Hessians damped by {self.damping:.2g} of their mean diagonal"

    def zero(self, layers: list[LinearLayer], module: Any, context: BuildContext) -> tuple[str, ...]:
        """See ``MaskPruner.zero``. A layer whose Hessian can't be inverted is pruned by magnitude, and named."""
        import torch

        from experiments.parts.masks import smallest
        from experiments.parts.sparsegpt import Factor, inverse_factor, sparsegpt

        statistics = self.statistics(module, context)
        factor: Factor | None = None
        source = None
        dead: dict[str, int] = {}
        raised: dict[str, float] = {}
        fallback: list[str] = []
        with torch.no_grad():
            for number, layer in enumerate(layers):
                fed = statistics.get(layer.name)
                if fed is not None and fed.source != source:
                    factor, source = inverse_factor(fed.moment, self.damping), fed.source
                if fed is None or factor is None:
                    if fed is not None:
                        fallback.append(layer.name)
                    mask = smallest(layer.weight.abs(), round(self.amount * layer.weight.numel()))
                    layer.weight.masked_fill_(mask, 0)
                else:
                    layer.weight.copy_(sparsegpt(layer.weight, factor, self.amount, self.block_size))
                    if factor.damping > self.damping:
                        raised[layer.name] = factor.damping
                    if count := int(factor.dead.sum()):
                        dead[layer.name] = count
                context.progress(0.5 + 0.5 * (number + 1) / len(layers))
        warnings = []
        if dead:
            warnings.append(
                f"{max(dead.values())} input channels were always 0 on the calibration rows, first in "
                f"{names_in_words(list(dead))}: their weights went first"
            )
        if raised:
            warnings.append(
                f"damping raised up to {max(raised.values()):.2g} for {names_in_words(list(raised))}: "
                "the calibration rows are too few or too much alike"
            )
        if fallback:
            warnings.append(
                f"{names_in_words(fallback)}: the Hessian could not be inverted, pruned by magnitude instead; "
                "use more calibration rows"
            )
        return (*warnings, *never_fed(layers, statistics))
