"""Layer dropping: whole blocks go, those that change least what passes through them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from experiments.protocols import Ask, Aspect, BuildContext, ModelFacts, Technique, Textbook, Use
from experiments.records import ExperimentError, FailureKind, StepEffect

if TYPE_CHECKING:
    from experiments.records import Report


class DropLayers(Technique):
    """Remove whole blocks of an encoder or a decoder: named ones, or those with the least influence.

    Influence is 1 - cosine between what a block is fed and what it gives, measured once on calibration rows before
    anything is dropped. ``num_hidden_layers`` in config.json says the new depth.
    """

    title = "Drop layers"
    summary = "Removes whole blocks, by number or those that change their input least on calibration rows."
    origin = (
        "Men et al., ShortGPT: Layers in Large Language Models are More Redundant Than You Expect, arXiv:2403.03853"
    )

    technique: Literal["drop-layers"] = "drop-layers"
    count: int | None = Field(
        default=None, ge=1, le=1000, description="How many blocks to drop, those with the least influence; usually 1."
    )
    layers: tuple[int, ...] = Field(
        default=(), description="Numbers of the blocks to drop, counted from 0, instead of a count."
    )
    samples: int = Field(
        default=64, ge=1, le=10_000, description="Calibration rows, or windows of running text, to measure influence."
    )

    forms = frozenset({"torch"})
    alters = True
    shared = True
    textbook = Textbook(
        latency="faster in proportion to the blocks that are gone: 1.33x at a quarter",
        size="smaller in proportion to the blocks that are gone",
        quality="about 10 % lower scores with a quarter of the layers gone, without training (LLaMA 2)",
        speedup=(1.1, 1.4),
        shrink=(1.1, 1.4),
        loss=(0.0, 0.10),
    )

    @model_validator(mode="after")
    def _one_way_of_choosing(self) -> Self:
        if self.layers and self.count is not None:
            raise ValueError("give either count or layers, not both")
        if any(layer < 0 for layer in self.layers):
            raise ValueError("layers are counted from 0")
        if len(set(self.layers)) < len(self.layers):
            raise ValueError("a layer is named twice")
        return self

    @property
    def number(self) -> int:
        """How many blocks go."""
        return len(self.layers) or self.count or 1

    def needs(self) -> frozenset[Use]:
        """Calibration rows, unless the blocks are named."""
        return frozenset() if self.layers else frozenset({"calibration"})

    def valid(self, facts: ModelFacts) -> dict[str, Any]:
        """All but one block can go."""
        if not facts.layers:
            return {}
        return {"count": {"min": 1, "max": facts.layers - 1}, "layers": list(range(facts.layers))}

    def refuse(self, ask: Ask) -> str | None:
        """At least one block must stay, and those named must exist."""
        facts = ask.model
        if facts is None:
            return None
        if facts.quantized:
            return (
                f"drop-layers needs float weights, and the model is already quantized ({facts.quantized}); "
                "choose its unquantized original"
            )
        if not facts.layers:
            return f"a {facts.model_type} model is not one stack of blocks; choose prune-structured"
        return self._too_many(facts.layers)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """What stays whole, and that nothing was trained afterwards."""
        mine = next((e for e in report.effects if e.technique == self.technique), None)
        if mine is None:
            return None
        if aspect == "quality":
            recovered = any(e.losses for e in report.effects)
            return None if recovered else "No training step followed that would let the model recover."
        left = report.artifact.parameters if report.artifact else 0
        share = (mine.removed or 0) / max(1, left + (mine.removed or 0))
        return f"{share:.0%} of all parameters were removed: embeddings and the output head stay whole."

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Remove the blocks.

        Raises:
            ExperimentError: ``unsupported`` if the model is not one stack of blocks or has fewer, ``bad_dataset`` if
                influence is to be measured and there are no calibration rows.
        """
        from experiments.parts.block_list import block_list
        from experiments.parts.depth import drop_blocks
        from experiments.parts.finite import require_finite
        from experiments.parts.influence import block_influence
        from experiments.parts.tied_weights import parameter_count

        require_finite(module)
        _, blocks = block_list(module)
        total = len(blocks)
        if why := self._too_many(total):
            raise ExperimentError(FailureKind.UNSUPPORTED, why, fix=f"Drop at most {total - 1}.", field="recipe")
        before = parameter_count(module)
        measured = ""
        dropped = sorted(self.layers)
        if not dropped:
            influence = block_influence(module, blocks, context, samples=self.samples)
            order = sorted(range(total), key=lambda n: (influence[n], n))
            dropped = sorted(order[: self.number])
            shown = ", ".join(f"{n}: {influence[n]:.3g}" for n in order[: self.number + 3])
            measured = f"; influence {shown}{', ...' if total > self.number + 3 else ''}"
        drop_blocks(module, dropped)
        gone = before - parameter_count(module)
        names = ", ".join(map(str, dropped))
        summary = (
            f"{len(dropped)} of {total} blocks dropped (number {names}, counted from 0), "
            f"{gone:,} of {before:,} parameters removed ({gone / before:.1%}){measured}"
        )
        return module, StepEffect(
            technique=self.technique, summary=summary, changed=len(dropped), of=total, removed=gone
        )

    def _too_many(self, total: int) -> str | None:
        if self.number >= total:
            return f"{self.number} layers can't be dropped from a model that has {total}; drop at most {total - 1}"
        if beyond := [n for n in self.layers if n >= total]:
            return f"there is no layer {beyond[0]}: the model has {total}, counted from 0 to {total - 1}"
        return None
