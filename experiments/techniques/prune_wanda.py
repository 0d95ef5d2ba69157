"""Wanda: the weights go whose products with their inputs are small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from experiments.parts.calibrated_pruner import CalibratedPruner, never_fed
from experiments.protocols import BuildContext, Textbook

if TYPE_CHECKING:
    from experiments.parts.linear_layers import LinearLayer


class PruneWanda(CalibratedPruner):
    """Set weights of the blocks' linear layers to zero by |weight| x L2 norm of their input, within each output row.

    The remaining weights stay as they are. All layers are judged by what the model fed them before this step (the
    paper judges each block after the earlier ones are pruned). Embeddings, poolers and output heads are left alone.
    The result is a mask: neither smaller nor faster.
    """

    title = "Wanda pruning"
    summary = "Sets the weights to zero that matter least for what the layer is fed; needs a few calibration rows."
    origin = "Sun et al., A Simple and Effective Pruning Approach for Large Language Models, arXiv:2306.11695"

    technique: Literal["prune-wanda"] = "prune-wanda"
    amount: float = Field(default=0.5, gt=0, lt=1, description="Share of each output row that becomes zero, e.g. 0.5.")

    textbook = Textbook(
        latency="faster only where a sparse kernel runs",
        size="half of the weights at 50 %, small only in a sparse file format",
        quality="1 to 10 % lower zero-shot accuracy at 50 % (LLaMA 65B to 7B), without any training",
        shrink=(2.0, 2.0),
        loss=(0.0, 0.10),
    )

    def zero(self, layers: list[LinearLayer], module: Any, context: BuildContext) -> tuple[str, ...]:
        """See ``MaskPruner.zero``."""
        import torch

        from experiments.parts.masks import smallest_of_rows

        statistics = self.statistics(module, context)
        with torch.no_grad():
            for number, layer in enumerate(layers):
                scores = layer.weight.abs().float()
                if layer.name in statistics:
                    scores *= statistics[layer.name].norm
                mask = smallest_of_rows(scores, round(self.amount * scores.shape[1]))
                layer.weight.masked_fill_(mask, 0)
                context.progress(0.5 + 0.5 * (number + 1) / len(layers))
        return never_fed(layers, statistics)
