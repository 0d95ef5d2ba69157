"""The one training loop: AdamW, linear warm-up and decay, seeded, going on from a checkpoint after a kill."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.parts.checkpoints import Checkpoints, State
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
    *,
    checkpoints: Checkpoints | None = None,
    masks: Mapping[str, torch.Tensor] | None = None,
) -> list[float]:
    """Train the parameters of ``module`` that require gradients, in place; it is left in evaluation mode.

    Args:
        module: what is trained.
        batches: at least ``plan.steps`` batches, the same ones at every call: a training that goes on passes over
            those that were learnt from already.
        plan: steps and rates. Its seed fixes dropout; the global random state is put back afterwards.
        report: is told every step.
        loss: a scalar from the module and a batch.
        checkpoints: where the training is kept now and then, and from where it goes on. One that was killed and goes
            on ends with the same weights and losses as one that was not.
        masks: parameter name -> tensor of its shape, 0 where the weight is zero and must stay so.

    Returns:
        The loss of every step.

    Raises:
        ExperimentError: ``canary`` naming the step at which loss or gradients stop being finite; ``no_effect`` if no
            parameter requires a gradient.
    """
    import torch

    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise ExperimentError(FailureKind.NO_EFFECT, "no parameter of the model can be trained: all of them are frozen")
    held = [(trained[name], mask) for name, mask in (masks or {}).items() if name in trained]
    optimizer = torch.optim.AdamW(_groups(module, plan.weight_decay), lr=plan.learning_rate)
    stream = iter(batches)
    devices = sorted({p.device.index or 0 for p in trained.values() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(plan.seed)
        losses = _going_on(module, optimizer, plan, checkpoints, stream)
        first = len(losses)
        running = _running(losses)
        module.train()
        started = time.monotonic()
        try:
            for step in range(first + 1, plan.steps + 1):
                for group in optimizer.param_groups:
                    group["lr"] = plan.learning_rate * _scale(step - 1, plan)
                value = loss(module, next(stream))
                _finite(float(value.detach()), "the loss", step, plan)
                value.backward()
                for parameter, mask in held:
                    if parameter.grad is not None:
                        parameter.grad.mul_(mask)
                norm = torch.nn.utils.clip_grad_norm_(trained.values(), plan.clip)
                _finite(float(norm), "the size of the gradients", step, plan)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(float(value.detach()))
                running = losses[-1] if math.isnan(running) else 0.9 * running + 0.1 * losses[-1]
                left = (time.monotonic() - started) / (step - first) * (plan.steps - step)
                report(Progress(step=step, steps=plan.steps, loss=running, seconds_left=left))
                if checkpoints is not None and checkpoints.due(step, plan.steps):
                    checkpoints.save(State.of(module, optimizer, losses, devices))
        finally:
            module.eval()
    return losses


def thinned(losses: Sequence[float], most: int = 200) -> tuple[tuple[int, float], ...]:
    """(step, loss) of at most ``most`` steps, evenly spread, the first and the last among them."""
    count = min(most, len(losses))
    if count < 2:
        return tuple((step, loss) for step, loss in enumerate(losses, 1))
    picked = [round(index * (len(losses) - 1) / (count - 1)) for index in range(count)]
    return tuple((index + 1, losses[index]) for index in picked)


def pruned_masks(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameter name -> 1 where a weight is not zero, 0 where it is, for the matrices and kernels that have zeros."""
    masks = {}
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            mask = (parameter.detach() != 0).to(parameter.dtype)
            if not bool(mask.all()):
                masks[name] = mask
    return masks


def _going_on(
    module: torch.nn.Module, optimizer: Any, plan: Plan, checkpoints: Checkpoints | None, stream: Iterator[Batch]
) -> list[float]:
    """Losses so far, with weights, optimizer, chance and ``stream`` as they were after them; none at a fresh start."""
    state = checkpoints.last(plan) if checkpoints is not None else None
    if state is None:
        return []
    state.restore(module, optimizer)
    for _ in range(len(state.losses)):
        next(stream)
    return list(state.losses)


def _running(losses: Sequence[float]) -> float:
    running = math.nan
    for loss in losses:
        running = loss if math.isnan(running) else 0.9 * running + 0.1 * loss
    return running


def _finite(value: float, what: str, step: int, plan: Plan) -> None:
    if not math.isfinite(value):
        raise ExperimentError(
            FailureKind.CANARY,
            f"training lost its footing: {what} became {value} at step {step} of {plan.steps}",
            fix="Use a smaller learning rate or a longer warm-up.",
            step=step,
        )


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
