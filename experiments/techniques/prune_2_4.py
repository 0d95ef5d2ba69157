"""2:4 sparsity: of every four neighbouring weights of a row, two become zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from experiments.parts.calibrated_pruner import never_fed
from experiments.parts.mask_pruner import MaskPruner
from experiments.protocols import Ask, BuildContext, Textbook, Use
from experiments.records import ExperimentError, FailureKind, StepEffect

if TYPE_CHECKING:
    from experiments.parts.linear_layers import LinearLayer


class Prune24(MaskPruner):
    """Set two of every four weights along the input dimension of the blocks' linear layers to zero.

    The pattern is the one that sparse tensor cores multiply: on CUDA the layers are stored in half precision without
    the zeros (``packed``). Elsewhere it is a mask like any other: neither smaller nor faster. Embeddings, poolers and
    output heads are left alone.
    """

    title = "2:4 pruning"
    summary = "Sets two of every four neighbouring weights to zero, the pattern that sparse tensor cores know."
    origin = "Mishra et al., Accelerating Sparse Deep Neural Networks, arXiv:2104.08378"

    technique: Literal["prune-2-4"] = "prune-2-4"
    importance: Literal["magnitude", "wanda"] = Field(
        default="magnitude",
        description="Judge weights by size, or by size x L2 norm of what they are multiplied with on calibration rows.",
    )
    samples: int = Field(default=128, ge=1, le=10_000, description="Calibration rows at most, for wanda.")
    pack: bool = Field(
        default=True,
        description="On CUDA with sparse tensor cores: store half of the weights in float16 for their kernel. False "
        "leaves a mask there too, which later steps can train or quantize.",
    )

    shared = True
    makes = "float16"  # where it packs
    textbook = Textbook(
        latency="up to 2x faster matrix products on sparse tensor cores (compute capability 8.0)",
        size="1.8x smaller linear layers in half precision (values and 2-bit positions)",
        quality="no loss after retraining; without it 10 to 20 % lower zero-shot accuracy (LLaMA 7B, Wanda)",
        speedup=(1.1, 2.0),
        shrink=(1.6, 1.8),
        loss=(0.0, 0.2),
    )

    def refuse(self, ask: Ask) -> str | None:
        """What is packed for a kernel can be neither exported nor changed any more."""
        if ask.device == "cuda" and self.pack:
            if ask.runtime.form != "torch":
                return (
                    "weights packed for the sparse kernel can't be exported; set pack to false, or choose torch-eager"
                )
            if ask.recipe and ask.recipe[-1] != self:
                return (
                    "no step can change weights that are packed for the sparse kernel; set pack to false, and end the "
                    "recipe with a second prune-2-4"
                )
        return super().refuse(ask)

    def needs(self) -> frozenset[Use]:
        """Calibration rows, if weights are judged by what they are multiplied with."""
        return frozenset({"calibration"}) if self.importance == "wanda" else frozenset()

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Set weights to zero, and pack the layers where their kernel is. Raises as ``MaskPruner.apply_torch``."""
        from experiments.parts.sparse_2_4_packing import has_kernel, pack_layers

        module, effect = super().apply_torch(module, context)
        if context.device != "cuda" or not self.pack:
            return module, effect
        if not has_kernel():
            why = "this GPU has no sparse tensor cores (compute capability 8.0): the zeros are a mask"
            return module, effect.model_copy(update={"warnings": (*effect.warnings, why)})
        return pack_layers(module, self.keep, effect)

    def zero(self, layers: list[LinearLayer], module: Any, context: BuildContext) -> tuple[str, ...]:
        """See ``MaskPruner.zero``."""
        import torch

        from experiments.parts.calibration import input_statistics
        from experiments.parts.masks import two_of_four

        for layer in layers:
            if layer.weight.shape[1] % 4:
                raise ExperimentError(
                    FailureKind.UNSUPPORTED,
                    f"{layer.name} has {layer.weight.shape[1]} inputs, which four does not divide",
                    fix=f"Name it in keep: '{layer.name}'.",
                    field="recipe.keep",
                )
        statistics = input_statistics(module, context, samples=self.samples) if self.needs() else None
        with torch.no_grad():
            for number, layer in enumerate(layers):
                scores = layer.weight.abs().float()
                if statistics is not None and layer.name in statistics:
                    scores *= statistics[layer.name].norm
                layer.weight.masked_fill_(two_of_four(scores), 0)
                context.progress((number + 1) / len(layers))
        return never_fed(layers, statistics) if statistics is not None else ()
