"""Applies the ONNX steps of a recipe to the graph in a folder, one after another."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from experiments.protocols import BuildContext, Technique
from experiments.records import StepEffect


def apply_onnx_steps(folder: Path, steps: Sequence[Technique], context: BuildContext) -> list[StepEffect]:
    """Replace ``folder/model.onnx`` (and its external data) by the result of each step in turn.

    Each step reads from ``folder`` and writes into a folder of its own, so a failed step leaves the source whole.
    """
    from experiments.parts.onnx_graph import DATA, MODEL

    effects = []
    for number, step in enumerate(steps):
        scratch = context.work / f"step-{number}-{step.technique}"
        scratch.mkdir(parents=True)
        effects.append(step.apply_onnx(folder / MODEL, scratch / MODEL, context))
        (folder / DATA).unlink(missing_ok=True)
        for name in (MODEL, DATA):
            if (scratch / name).is_file():
                shutil.move(scratch / name, folder / name)
    return effects
