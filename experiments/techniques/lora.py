"""LoRA: small low-rank matrices are trained beside frozen weights, then merged or kept apart."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from experiments.parts.attention_layers import usual_targets
from experiments.parts.training_step import TrainingStep
from experiments.protocols import Ask, Aspect, BuildContext, ModelFacts, Textbook
from experiments.records import Label, Report, StepEffect


class Lora(TrainingStep):
    """Train ``B A`` of rank ``rank`` beside each targeted ``W``: the layer computes ``W x + alpha / rank B A x``.

    Merged, the result is a plain model of the same shape. Apart, the artifact is the base model and one or several
    adapters in PEFT's own format, which torch runtimes open; several share one base in memory.
    """

    title = "LoRA"
    summary = "Trains small low-rank matrices beside the frozen weights; merged into them, or kept as adapters."
    origin = (
        "Hu et al., LoRA, arXiv:2106.09685; rank-stabilised scaling: Kalajdzievski, arXiv:2312.03732; library: PEFT"
    )

    technique: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1, le=1024, description="Rank of the trained matrices; at most a layer's width.")
    alpha: int = Field(default=16, ge=1, le=4096, description="What is added is scaled by alpha / rank.")
    dropout: float = Field(default=0.05, ge=0, lt=1, description="Share of the adapters' inputs that is left out.")
    targets: tuple[str, ...] = Field(
        default=(),
        description="Linear layers to adapt, by name or pattern, e.g. 'q_proj'; by default all of the attention's.",
    )
    use_rslora: bool = Field(default=False, description="Scale by alpha / sqrt(rank), which is stable at high ranks.")
    merge: bool = Field(default=True, description="Add the result to the weights; false keeps adapters beside them.")
    adapters: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Adapters trained on one base, each on its own share of the training rows and with its own seed. "
        "Merged, it is their mean that is added.",
    )
    learning_rate: float = Field(
        default=3e-4, gt=0, le=1, description="Peak rate of AdamW, reached after the warm-up; it falls to zero."
    )

    tasks = frozenset({"text-classification", "image-classification", "text-generation"})
    libraries = ("peft",)
    textbook = Textbook(
        latency="unchanged once merged; adapters apart add two small products a layer",
        size="unchanged once merged; an adapter alone is 0.1 to 1 % of the model",
        quality="close to training all weights",
        speedup=(1.0, 1.0),
        shrink=(1.0, 1.0),
    )

    def must_be_last(self) -> str | None:
        """Adapters apart are no weights of the model that a later step could work on."""
        return None if self.merge else "its adapters lie beside the base model's weights (merge: true adds them)"

    def valid(self, facts: ModelFacts) -> dict[str, Any]:
        """Ranks up to the narrowest attention projection, and the names of the projections."""
        offered: dict[str, Any] = {}
        if (most := _narrowest(facts)) is not None:
            offered["rank"] = {"min": 1, "max": most}
        if names := usual_targets(facts.model_type):
            offered["targets"] = list(names)
        return offered

    def refuse(self, ask: Ask) -> str | None:
        """A rank that is no low rank, features (nothing to learn), and zeros that a merge would fill."""
        if ask.task == "feature-extraction":
            return "lora has no labels to learn from in feature-extraction; choose distill, which needs none"
        most = _narrowest(ask.model) if ask.model is not None else None
        if most is not None and not self.targets and self.rank > most:
            return f"rank {self.rank:,} is above the size of the attention projections; choose at most {most:,}"
        before = ask.recipe[: ask.recipe.index(self)] if self in ask.recipe else ()
        masked = next((step.technique for step in before if step.label is Label.MASKED_SPARSE), None)
        if self.merge and masked is not None:
            return (
                f"merging would fill the zeros that {masked} made; put lora before {masked}, choose finetune, "
                "or set merge to false"
            )
        return super().refuse(ask)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """What adapters cost apart, and what few steps can't learn."""
        if aspect == "quality":
            return f"{self.steps:,} steps at rank {self.rank} are what was spent; more of either may learn more"
        if self.merge:
            return None
        if aspect == "latency":
            return "the adapters are not merged: every adapted layer computes two small products more"
        return f"the base model is stored whole, and {self.adapters} adapter{'s' * (self.adapters > 1)} beside it"

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Train the adapters, and merge them unless told otherwise.

        Raises:
            ExperimentError: ``unsupported`` if a target names nothing or a rank is above its layer's size;
                ``bad_dataset`` without labelled training rows; ``canary`` naming the step where the loss stops being
                finite; ``no_effect`` if nothing was learnt.
        """
        from experiments.parts.lora import adapted

        return adapted(module, self, context)


def _narrowest(facts: ModelFacts) -> int | None:
    """The smallest side of the attention projections, as far as the facts tell it."""
    if facts.hidden_size is None:
        return None
    if facts.heads and facts.kv_heads:
        return max(1, facts.hidden_size // facts.heads * facts.kv_heads)
    return facts.hidden_size
