"""Trains all weights of a model on its task, keeping zeros where it was pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.parts.encoded_rows import encode_rows
from experiments.parts.learning import course, labelled, learn, marks, task_loss, training_form
from experiments.parts.learnt_rounding import rounded_layers
from experiments.parts.training import pruned_masks, thinned
from experiments.records import ExperimentError, FailureKind, StepEffect

if TYPE_CHECKING:
    from experiments.parts.training_step import TrainingStep
    from experiments.protocols import BuildContext


def finetuned(module: Any, step: TrainingStep, context: BuildContext) -> tuple[Any, StepEffect]:
    """``module``, trained in place as ``step`` says, and what that changed.

    Raises:
        ExperimentError: see ``Finetune.apply_torch``.
    """
    rows = labelled(encode_rows(context.rows("train"), context, length=step.max_length), step.technique)
    before = marks(module)
    with training_form(module, context) as warnings, rounded_layers(module, context.through, context) as rounded:
        masks = pruned_masks(module) if context.masked else {}
        zeros = sum(int((mask == 0).sum()) for mask in masks.values())
        losses = learn(module, rows, step, context, task_loss(context.task), masks=masks)
    after = marks(module)
    changed = sum(after[name] != mark for name, mark in before.items())
    if not changed:
        raise ExperimentError(
            FailureKind.NO_EFFECT,
            f"{step.technique} changed none of {len(before)} weights in {step.steps:,} steps",
            fix="Use a larger learning_rate or more steps.",
        )
    said = [f"{changed} of {len(before)} weights trained", course(losses, step, rows)]
    if context.through is not None:
        said.append(f"through the rounding of {context.through.technique} in {rounded} linear layers")
    if context.masked:
        said.append(f"{zeros:,} zeros held")
    effect = StepEffect(
        technique=step.technique,
        summary="; ".join(said),
        changed=changed,
        of=len(before),
        warnings=warnings,
        losses=thinned(losses),
    )
    return module, effect
