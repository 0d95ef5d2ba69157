"""How a technique trains: rows to batches, losses of each task, progress, checkpoints; the model's form is put back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from experiments.parts.checkpoints import Checkpoints
from experiments.parts.training import Plan, Progress, train
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    from experiments.parts.encoded_rows import EncodedRows
    from experiments.parts.training import Batch, Loss
    from experiments.parts.training_step import TrainingStep
    from experiments.protocols import BuildContext, Task

#: Seconds between two lines of progress.
_TELL_EVERY = 0.5
#: Key of the right answers in a batch; all others are the model's inputs.
TARGETS = "targets"
#: Steps at each end whose mean loss is told.
_ENDS = 10


def learn(
    module: torch.nn.Module,
    rows: EncodedRows,
    step: TrainingStep,
    context: BuildContext,
    loss: Loss,
    *,
    masks: Mapping[str, torch.Tensor] | None = None,
    part: int = 0,
    parts: int = 1,
) -> list[float]:
    """Train ``module`` as ``step`` says; returns the loss of every step.

    Args:
        module: on the device of the context, in float32 (see :func:`training_form`).
        rows: what is learnt from.
        step: how long and how fast.
        context: seed, progress and checkpoints.
        loss: a scalar from the module and a batch (the model's inputs and ``targets``).
        masks: see :func:`experiments.parts.training.train`.
        part: which of ``parts`` trainings that follow each other this is; each has its own seed and checkpoints.
        parts: how many trainings this step consists of.

    Raises:
        ExperimentError: ``canary`` naming the step where the loss is not finite; ``bad_dataset`` if there are fewer
            rows than one batch.
    """
    seed = context.seed + part
    checkpoints = None
    if context.checkpoints is not None:
        checkpoints = Checkpoints(context.checkpoints / f"{step.technique}-{part}", at_end=parts > 1)
    plan = Plan(
        steps=step.steps,
        learning_rate=step.learning_rate,
        warmup=step.warmup,
        weight_decay=step.weight_decay,
        seed=seed,
    )
    what = step.technique if parts == 1 else f"{step.technique} {part + 1} of {parts}"
    report = _teller(context, what, part, parts)
    return train(
        module, _batches(rows, step.batch_size, seed, context.device), plan, report, loss, checkpoints=checkpoints,
        masks=masks,
    )  # fmt: skip


@contextmanager
def training_form(module: torch.nn.Module, context: BuildContext) -> Iterator[tuple[str, ...]]:
    """``module`` in float32, on the device and with all its weights trainable; afterwards as it was stored.

    Gives warnings for the report: rounding back to a narrow format takes away a part of what was learnt.
    """
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    module.float().to(context.device)
    narrow = str(dtype).removeprefix("torch.")
    try:
        yield (f"trained in float32, then rounded back to {narrow}",) if dtype is not torch.float32 else ()
    finally:
        module.to("cpu", dtype)
        module.requires_grad_(True)
        module.eval()


def inputs_of(batch: Batch, task: Task) -> dict[str, Any]:
    """What the model is called with: all of a batch but its answers."""
    inputs: dict[str, Any] = {name: tensor for name, tensor in batch.items() if name != TARGETS}
    if task == "text-generation":
        inputs["use_cache"] = False
    return inputs


def task_loss(task: Task) -> Loss:
    """Cross-entropy in nats between a model's logits and a batch's targets (of the next token, for running text)."""

    def loss(module: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return cross_entropy(module(**inputs_of(batch, task)).logits, batch[TARGETS])

    return loss


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean over rows of (batch, classes) logits, or over the following tokens of (batch, length, vocabulary) ones.

    Targets of -100 (padding) count nothing.
    """
    if logits.ndim == 3:
        logits, targets = logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100)


def labelled(rows: EncodedRows, technique: str) -> EncodedRows:
    """``rows``, which must have answers to learn.

    Raises:
        ExperimentError: ``bad_dataset`` if they have none.
    """
    if len(rows) and rows.targets([0]) is None:
        raise ExperimentError(
            FailureKind.BAD_DATASET,
            f"the training rows have no labels, which {technique} learns",
            fix="Name the label column in dataset.columns.label.",
            field="dataset.columns.label",
        )
    return rows


def course(losses: list[float], step: TrainingStep, rows: EncodedRows) -> str:
    """E.g. '60 steps of 32 out of 5,646 rows, loss 0.412 -> 0.287 (means of the first and last 10 steps)'."""
    ends = max(1, min(_ENDS, len(losses) // 2))
    first, last = sum(losses[:ends]) / ends, sum(losses[-ends:]) / ends
    unit = f"windows of {len(rows.tokens[0]):,} tokens" if rows.windows else "rows"
    means = f"means of the first and last {ends} steps" if ends > 1 else "first and last step"
    return (
        f"{len(losses):,} steps of {step.batch_size:,} out of {len(rows):,} {unit}, loss {first:.3g} -> {last:.3g} "
        f"({means})"
    )


def marks(module: torch.nn.Module) -> dict[str, tuple[float, float]]:
    """Two sums of every parameter, to tell afterwards which ones have changed."""
    return {
        name: (float(p.detach().double().sum()), float(p.detach().double().square().sum()))
        for name, p in module.named_parameters()
    }


def _batches(rows: EncodedRows, size: int, seed: int, device: str) -> Iterator[Batch]:
    for picked in rows.shuffled(size, seed):
        arrays = dict(rows.batch(picked))
        targets = rows.targets(picked)
        if targets is not None:
            arrays[TARGETS] = targets
        yield {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def _teller(context: BuildContext, what: str, part: int, parts: int) -> Callable[[Progress], None]:
    """Tells every half second how far all of ``parts`` trainings are, of which this is number ``part``."""
    told, pace = 0.0, 0.0

    def report(progress: Progress) -> None:
        nonlocal told, pace
        remaining = progress.steps - progress.step
        if remaining:
            pace = progress.seconds_left / remaining
        now = time.monotonic()
        if now - told < _TELL_EVERY and remaining:
            return
        told = now
        whole = replace(progress, seconds_left=pace * (remaining + (parts - part - 1) * progress.steps))
        context.progress((part + progress.fraction) / parts, whole.sentence(what), whole.seconds_left)

    return report
