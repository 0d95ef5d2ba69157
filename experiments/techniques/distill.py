"""Distillation: a smaller student learns to answer like the model it was cut from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from experiments.parts.student_shape import chosen_layers, width_units
from experiments.parts.training_step import TrainingStep
from experiments.protocols import Ask, Aspect, BuildContext, ModelFacts, Textbook
from experiments.records import Report, StepEffect


class Distill(TrainingStep):
    """Cut a student out of the model (fewer layers, narrower ones, or both) and train it on the model's own answers.

    The loss is ``alpha * T^2 * KL(teacher || student)`` of the answers softened by temperature ``T``, plus
    ``(1 - alpha)`` times the task's own loss where rows have labels, plus ``hidden_weight`` times the distance of the
    hidden states. For features it is the distance of the embeddings and of the hidden states.
    """

    title = "Distil"
    summary = "A student of fewer or narrower layers, cut from the model, learns the model's own answers."
    origin = (
        "Hinton et al., Distilling the Knowledge in a Neural Network, arXiv:1503.02531; students from the teacher's "
        "layers: Sanh et al., arXiv:1910.01108; hidden states: Jiao et al., arXiv:1909.10351"
    )

    technique: Literal["distill"] = "distill"
    layers: int | tuple[int, ...] | None = Field(
        default=None,
        description="Layers of the student: how many (evenly spread over the teacher's), or which ones, counted from 0 "
        "(by default half of them).",
    )
    width: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the teacher's width; whole heads go, so it is rounded to what the heads allow.",
    )
    temperature: float = Field(default=2.0, ge=1, le=20, description="Softens the answers that are compared.")
    alpha: float = Field(
        default=0.5, ge=0, le=1, description="Weight of the teacher's answers; the labels get the rest."
    )
    hidden_weight: float = Field(
        default=0.0, ge=0, le=100, description="Weight of the distance between the hidden states after each layer."
    )
    steps: int = Field(default=300, ge=1, le=100_000, description="Batches to learn from.")
    learning_rate: float = Field(
        default=2e-4, gt=0, le=1, description="Peak rate of AdamW, reached after the warm-up; it falls to zero."
    )

    textbook = Textbook(
        latency="as many times faster as the student is smaller; 10 % of the size gives about 10x",
        size="10 to 50 % of the teacher",
        quality="3 to 5 % lower score",
        speedup=(2.0, 10.0),
        shrink=(2.0, 10.0),
        loss=(0.03, 0.05),
    )

    @field_validator("layers")
    @classmethod
    def _layers_in_order(cls, value: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        if isinstance(value, int) and value < 1:
            raise ValueError("a student has at least one layer")
        if isinstance(value, tuple) and (not value or list(value) != sorted(set(value)) or value[0] < 0):
            raise ValueError("layers are named once each, from 0, in rising order")
        return value

    def valid(self, facts: ModelFacts) -> dict[str, Any]:
        """Fewer layers than the teacher's, and the widths that leave whole heads."""
        offered: dict[str, Any] = {}
        if facts.layers is not None:
            offered["layers"] = {"min": 1, "max": facts.layers if self.width < 1 else max(1, facts.layers - 1)}
        if units := width_units(facts):
            offered["width"] = [round(unit / units, 4) for unit in range(1, units + 1)]
        return offered

    def refuse(self, ask: Ask) -> str | None:
        """No student that is not smaller than its teacher, and no embeddings of another width."""
        facts = ask.model
        if ask.task == "feature-extraction" and self.width < 1:
            return (
                "embeddings of another width would fit no index that was made with the teacher's; choose fewer layers"
            )
        if facts is None:
            return None
        if self.width < 1 and width_units(facts) is None:
            return f"a narrower student of '{facts.model_type}' can't be cut; choose fewer layers and leave width at 1"
        if facts.layers is not None:
            wanted = chosen_layers(self.layers, facts.layers)
            if isinstance(wanted, str):
                return wanted
            if len(wanted) == facts.layers and self.width == 1:
                return (
                    f"the student would be as large as its teacher: {facts.layers} layers of full width; choose fewer "
                    "layers, or finetune to train the model as it is"
                )
        return super().refuse(ask)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """Embeddings stay, and short training teaches little."""
        if aspect == "quality":
            return f"{self.steps:,} steps of training are what was spent; a student learns more from more"
        what = "narrower" if self.width < 1 else "as wide as before"
        return f"layers go, but embeddings and heads stay ({what}), so the whole shrinks less than its layers do"

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Cut the student out of ``module`` and train it.

        Raises:
            ExperimentError: ``unsupported`` if the student would not be smaller, or the model can't be cut so;
                ``bad_dataset`` without training rows; ``canary`` naming the step where the loss stops being finite.
        """
        from experiments.parts.distillation import distilled

        return distilled(module, self, context)
