"""Structured pruning: whole neurons, attention heads or channels go, and the model is really smaller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from experiments.parts.block_anatomy import ANATOMIES, head_units, removed_units
from experiments.protocols import Ask, Aspect, BuildContext, ModelFacts, Technique, Textbook, Use
from experiments.records import ExperimentError, FailureKind, StepEffect

if TYPE_CHECKING:
    import torch

    from experiments.parts.structured import Norms, Removed
    from experiments.records import Report


class PruneStructured(Technique):
    """Remove the least important feed-forward neurons and attention heads, equally many in every block.

    Since all blocks lose as much, config.json can say it and a plain ``from_pretrained`` loads the result. Of models
    whose heads share key-value heads whole groups go, so that heads stay a multiple of key-value heads; the nearest
    possible number is removed. Embeddings and the output head stay.
    """

    title = "Structured pruning"
    summary = "Removes whole neurons and attention heads (channels of a ResNet): really smaller, dense and faster."
    origin = "Michel et al., arXiv:1905.10650 (heads); Li et al., arXiv:1608.08710 (norms); torch-pruning (channels)"

    technique: Literal["prune-structured"] = "prune-structured"
    amount: float = Field(default=0.3, gt=0, lt=1, description="Share of the neurons and of the heads to remove.")
    parts: tuple[Literal["ffn", "heads"], ...] = Field(
        default=("ffn", "heads"),
        min_length=1,
        description="What is removed: feed-forward neurons (ffn), attention heads (heads). A ResNet loses channels.",
    )
    importance: Literal["weight", "activation"] = Field(
        default="weight",
        description="Judge by the norm of the weights, or by what passes through on calibration rows.",
    )
    multiple: int = Field(
        default=8, ge=1, le=256, description="Neurons that stay are a multiple of this, as kernels like it."
    )
    samples: int = Field(default=128, ge=1, le=10_000, description="Calibration rows at most, for activation.")

    forms = frozenset({"torch"})
    alters = True
    shared = True
    libraries = ("torch-pruning",)
    textbook = Textbook(
        latency="1.2x to 2x faster at 30 to 50 %",
        size="1.2x to 2x smaller at 30 to 50 %",
        quality="1 to 5 % lower score after recovery; far more before it",
        speedup=(1.2, 2.0),
        shrink=(1.2, 2.0),
        loss=(0.01, 0.05),
    )

    def needs(self) -> frozenset[Use]:
        """Calibration rows, if importance is measured on some."""
        return frozenset({"calibration"}) if self.importance == "activation" else frozenset()

    def valid(self, facts: ModelFacts) -> dict[str, Any]:
        """Amounts that remove whole heads or groups of heads, and the parts that this type of model has."""
        if facts.model_type not in ANATOMIES:
            return {}
        if "heads" not in self.parts or not facts.heads:
            return {"parts": ["ffn", "heads"], "amount": {"min": 0.01, "max": 0.95}}
        units = head_units(facts.heads, facts.kv_heads or facts.heads)
        return {"parts": ["ffn", "heads"], "amount": [round(k / units, 3) for k in range(1, units)]}

    def refuse(self, ask: Ask) -> str | None:
        """The model's type must be known, and the amount must remove something."""
        facts = ask.model
        if facts is None:
            return None
        if facts.quantized:
            return (
                f"prune-structured needs float weights, and the model is already quantized ({facts.quantized}); "
                "choose its unquantized original"
            )
        if facts.model_type == "resnet":
            return _no_activation(self.importance)
        if facts.model_type not in ANATOMIES:
            return (
                f"prune-structured knows the blocks of {', '.join(ANATOMIES)} and resnet, not of "
                f"{facts.model_type}; choose prune-magnitude or prune-wanda"
            )
        if "heads" in self.parts and facts.model_type == "gpt2" and ask.runtime.form == "onnx":
            return (
                "config.json of gpt2 has no place for a cache of fewer heads, which the ONNX export needs; "
                "set parts to [ffn], or choose runtime torch-eager"
            )
        if self.parts == ("heads",) and facts.heads:
            units = head_units(facts.heads, facts.kv_heads or facts.heads)
            if not removed_units(units, self.amount):
                could = ", ".join(f"{k / units:.2g}" for k in range(1, units)) or "none"
                return (
                    f"{self.amount:.0%} of {facts.heads} heads with {facts.kv_heads or facts.heads} key-value heads is "
                    f"less than one group; amounts that divide are {could}"
                )
        return None

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """Most often: the blocks shrank, the rest of the model did not."""
        mine = next((e for e in report.effects if e.technique == self.technique), None)
        if mine is None:
            return None
        left = report.artifact.parameters if report.artifact else 0
        share = (mine.removed or 0) / max(1, left + (mine.removed or 0))
        if aspect == "quality":
            recovered = any(e.losses for e in report.effects)
            return None if recovered else "No training step followed that would let the model recover."
        return f"{share:.0%} of all parameters were removed: embeddings and what lies between the blocks stay whole."

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Remove in place.

        Raises:
            ExperimentError: ``unsupported`` if the model's blocks are not known or its config can't say the result,
                ``no_effect`` if the amount removes nothing, ``bad_model`` for non-finite weights.
        """
        from experiments.parts.block_list import require_described
        from experiments.parts.finite import require_finite
        from experiments.parts.tied_weights import parameter_count

        require_finite(module)
        before = parameter_count(module)
        lost = self._lost(module, context)
        gone = before - parameter_count(module)
        kept = {done.what: done.reason for done in lost if done.reason}
        if not gone:
            raise ExperimentError(
                FailureKind.NO_EFFECT,
                "prune-structured removed nothing: " + "; ".join(kept.values()),
                fix="Choose a larger amount.",
                field="recipe.amount",
            )
        require_described(module)
        changes = ", ".join(done.words() for done in lost if not done.reason)
        summary = f"{gone:,} of {before:,} parameters removed ({gone / before:.1%}): {changes}"
        summary += "".join(f"; {what} kept ({why})" for what, why in kept.items())
        return module, StepEffect(
            technique=self.technique,
            summary=summary,
            changed=len(lost) - len(kept),
            of=len(lost),
            kept=kept,
            removed=gone,
            warnings=_reader_of_heads(module),
        )

    def _lost(self, module: Any, context: BuildContext) -> list[Removed]:
        """Prune ``module`` and say what each part of it lost."""
        if module.config.model_type == "resnet":
            from experiments.parts.resnet_channels import prune_resnet

            if why := _no_activation(self.importance):
                raise ExperimentError(FailureKind.UNSUPPORTED, why, field="recipe.importance")
            return [prune_resnet(module, self.amount, self.multiple)]
        from experiments.parts.structured import prune_blocks

        norms: Norms | None = None
        if self.importance == "activation" and module.config.model_type in ANATOMIES:
            norms = _norms(module, context, self.samples)
        return prune_blocks(module, self.amount, self.parts, self.multiple, norms)


def _norms(module: Any, context: BuildContext, samples: int) -> Norms:
    """What each layer was fed, read from disk when asked for."""
    from experiments.parts.calibration import input_statistics

    statistics = input_statistics(module, context, samples=samples)

    def norm(layer: str) -> torch.Tensor:
        return statistics[layer].norm

    return norm


def _no_activation(importance: str) -> str | None:
    if importance == "activation":
        return "channels of a resnet are judged by their weights only; set importance to weight"
    return None


def _reader_of_heads(module: Any) -> tuple[str, ...]:
    if not getattr(module.config, "pruned_heads", None):
        return ()
    return ("config.json names the missing heads in pruned_heads, which transformers 4 reads",)
