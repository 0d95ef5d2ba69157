"""Fine-tuning: give back by gradients what pruning or rounding took."""

from __future__ import annotations

from typing import Any, Literal

from experiments.parts.training_step import TrainingStep
from experiments.protocols import Ask, Aspect, BuildContext, Textbook
from experiments.records import Report, StepEffect


class Finetune(TrainingStep):
    """Train all weights on the training rows with the task's own loss.

    After pruning, zeros stay zeros. Written after a quantizer, it trains through that one's rounding (the linear
    layers compute as they will once they are quantized), and the quantizer is applied to what was learnt.
    """

    title = "Fine-tune"
    summary = "Trains all weights on the training rows, to recover what pruning or quantization took."
    origin = (
        "retraining after pruning: Han et al., arXiv:1506.02626; training through rounding: Jacob et al., "
        "arXiv:1712.05877; AdamW: Loshchilov and Hutter, arXiv:1711.05101"
    )

    technique: Literal["finetune"] = "finetune"

    tasks = frozenset({"text-classification", "image-classification", "text-generation"})
    learns_rounding = True
    textbook = Textbook(
        latency="unchanged: the same layers with other weights",
        size="unchanged",
        quality="recovers most of what a moderate pruning or quantization took",
        speedup=(1.0, 1.0),
        shrink=(1.0, 1.0),
    )

    def refuse(self, ask: Ask) -> str | None:
        """Needs a task with answers to learn."""
        if ask.task == "feature-extraction":
            return "finetune has no labels to learn from in feature-extraction; choose distill, which needs none"
        return super().refuse(ask)

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """Few steps recover little."""
        if aspect != "quality":
            return None
        return (
            f"{self.steps:,} steps at a peak rate of {self.learning_rate:g} are what was spent; more may recover more"
        )

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Train ``module`` in place.

        Raises:
            ExperimentError: ``bad_dataset`` without labelled training rows, ``canary`` naming the step where the loss
                stops being finite, ``no_effect`` if no weight changed.
        """
        from experiments.parts.finetuning import finetuned

        return finetuned(module, self, context)
