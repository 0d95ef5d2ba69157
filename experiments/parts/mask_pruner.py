"""What all techniques share that set single weights to zero and keep the shape of every layer."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from experiments.protocols import Ask, Aspect, BuildContext, Technique
from experiments.records import ExperimentError, FailureKind, Label, StepEffect

if TYPE_CHECKING:
    from experiments.parts.linear_layers import LinearLayer
    from experiments.records import Report


class MaskPruner(Technique):
    """Sets weights of the linear layers in the blocks to zero; embeddings, poolers and output heads are left alone.

    A subclass says which weights (:meth:`zero`). What it makes is stored and computed as wide as before: it claims
    neither size nor speed.
    """

    keep: tuple[str, ...] = Field(
        default=(),
        description="Layers to leave whole, by name with wildcards, e.g. 'layer.0.*' or '*.down_proj'.",
    )

    forms = frozenset({"torch"})
    label: ClassVar[Label] = Label.MASKED_SPARSE
    alters: ClassVar[bool] = True

    def refuse(self, ask: Ask) -> str | None:
        """Integer weights can't be pruned."""
        if ask.model is not None and ask.model.quantized:
            return (
                f"{self.technique} needs float weights, and the model is already quantized ({ask.model.quantized}); "
                "choose its unquantized original"
            )
        return None

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """Zeros are stored and multiplied like any other weight."""
        mine = next((e for e in report.effects if e.technique == self.technique), None)
        if mine is None or (mine.label or self.label) is not Label.MASKED_SPARSE:
            return None
        if aspect == "size":
            return "The zeros are stored as wide as other weights: only a sparse file format would make them small."
        if aspect == "latency":
            return "No sparse kernel runs here: dense kernels multiply the zeros like any other weight."
        return "No training step followed that would let the remaining weights make up for those that are gone."

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Set weights to zero in place.

        Raises:
            ExperimentError: ``bad_model`` for non-finite weights, ``unsupported`` if a pattern in ``keep`` matches
                nothing, ``no_effect`` if no weight changed, ``canary`` if a weight is not finite afterwards.
        """
        from experiments.parts.block_layers import block_layers
        from experiments.parts.finite import in_words, non_finite_counts, require_finite
        from experiments.parts.summaries import kept_in_words
        from experiments.parts.tied_weights import parameter_count

        require_finite(module)
        layers, kept = block_layers(module, self.keep)
        total = len(layers) + len(kept)
        before = {layer.name: _zeros(layer) for layer in layers}
        warnings = self.zero(layers, module, context) if layers else ()
        if broken := non_finite_counts(module):
            raise ExperimentError(
                FailureKind.CANARY,
                f"{self.technique} made weights that are not finite: {in_words(broken)}",
                fix="Use more calibration rows or a larger damping.",
                tensors=broken,
            )
        after = {layer.name: _zeros(layer) for layer in layers}
        changed = sum(after[name] != before[name] for name in after)
        if not changed:
            raise ExperimentError(
                FailureKind.NO_EFFECT,
                f"{self.technique} changed none of {total} linear layers{kept_in_words(kept)}: "
                + ("as many weights were zero before" if layers else "none is left to prune"),
                fix="Name fewer layers in keep, choose a larger amount, or leave the step out.",
            )
        zeros, weights = sum(after.values()), sum(layer.weight.numel() for layer in layers)
        share = zeros / parameter_count(module)
        summary = (
            f"{zeros / weights:.1%} of the weights in {changed} of {total} linear layers are zero "
            f"({share:.1%} of all parameters){self.detail()}{kept_in_words(kept)}"
        )
        return module, StepEffect(
            technique=self.technique,
            summary=summary,
            changed=changed,
            of=total,
            kept=kept,
            zeros=zeros,
            warnings=(*warnings, *_emptied(layers, after)),
        )

    def detail(self) -> str:
        """What a reader should know of how the weights were chosen, as a clause that starts with ', '."""
        return ""

    @abstractmethod
    def zero(self, layers: list[LinearLayer], module: Any, context: BuildContext) -> tuple[str, ...]:
        """Set weights of ``layers`` to zero, in place; gives what a reader of the result must know.

        Raises:
            ExperimentError: ``unsupported`` naming the layer that can't be pruned so.
        """


def _zeros(layer: LinearLayer) -> int:
    return int((layer.weight == 0).sum())


def _emptied(layers: list[LinearLayer], zeros: dict[str, int]) -> tuple[str, ...]:
    """Layers that lost nearly everything: the model can't pass anything through them any more."""
    empty = [layer.name for layer in layers if zeros[layer.name] >= 0.99 * layer.weight.numel()]
    if not empty:
        return ()
    more = f" and {len(empty) - 1} more layers" if len(empty) > 1 else ""
    return (f"{empty[0]}{more} lost at least 99 % of the weights",)
