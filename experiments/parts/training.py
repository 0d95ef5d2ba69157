"""The one training loop: AdamW, linear warm-up and decay, seeded, with progress a person can read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch

    Batch = Mapping[str, torch.Tensor]
    Loss = Callable[[torch.nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train. ``learning_rate`` is the peak, reached after ``warmup`` (a share of steps)."""

    steps: int
    learning_rate: float
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """One step done. ``loss`` is a running mean (nats for a cross-entropy); ``seconds_left`` is at today's pace."""

    step: int
    steps: int
    loss: float
    seconds_left: float

    @property
    def fraction(self) -> float:
        """Share of the steps that are done, 0..1."""
        return self.step / self.steps

    def sentence(self, what: str) -> str:
        """E.g. 'training minilm-reviews: step 40 of 176, loss 0.412, about 95 s left'."""
        return (
            f"{what}: step {self.step:,} of {self.steps:,}, loss {self.loss:.3f}, about {self.seconds_left:.0f} s left"
        )


def own_loss(module: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The loss that a transformers model computes itself when the batch carries ``labels``."""
    loss: torch.Tensor = module(**batch).loss
    return loss


def train(
    module: torch.nn.Module,
    batches: Iterable[Batch],
    plan: Plan,
    report: Callable[[Progress], None] = lambda progress: None,
    loss: Loss = own_loss,
) -> list[float]:
    """Train the parameters of ``module`` that require gradients, in place; it is left in evaluation mode.

    ``batches`` must yield at least ``plan.steps`` batches. The seed fixes dropout; the global random state is put
    back afterwards. Returns the loss of every step.

    Raises:
        ExperimentError: ``canary`` if the loss stops being finite.
    """
    import torch

    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(_groups(module, plan.weight_decay), lr=plan.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _scale(step, plan))
    losses: list[float] = []
    running = math.nan
    stream = iter(batches)
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        module.train()
        started = time.monotonic()
        for step in range(1, plan.steps + 1):
            value = loss(module, next(stream))
            value.backward()
            torch.nn.utils.clip_grad_norm_(trained, plan.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(value.detach()))
            if not math.isfinite(losses[-1]):
                module.eval()
                raise ExperimentError(
                    FailureKind.CANARY,
                    f"training lost its footing: the loss became {losses[-1]} at step {step} of {plan.steps}",
                    fix="Use a smaller learning rate.",
                )
            running = losses[-1] if math.isnan(running) else 0.9 * running + 0.1 * losses[-1]
            left = (time.monotonic() - started) / step * (plan.steps - step)
            report(Progress(step=step, steps=plan.steps, loss=running, seconds_left=left))
        module.eval()
    return losses


def _groups(module: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """No decay on biases and norms (all parameters of one dimension), as usual."""
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _scale(step: int, plan: Plan) -> float:
    """Share of the peak learning rate at ``step``: up over the warm-up, then down to zero."""
    rising = max(1, round(plan.steps * plan.warmup))
    if step < rising:
        return (step + 1) / rising
    return max(0.0, (plan.steps - step) / max(1, plan.steps - rising))
