"""In which form each step of a recipe is applied. One rule, for preflight and for the builder; torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.protocols import Runtime, Technique
from experiments.records import Label, StepEffect


@dataclass(frozen=True)
class Plan:
    """The steps before the export (on the torch module) and after it (on the ONNX graph), in order."""

    torch: tuple[Technique, ...]
    onnx: tuple[Technique, ...]


def plan(recipe: Sequence[Technique], runtime: Runtime) -> Plan | str:
    """The plan, or one sentence why this recipe can't be made for this runtime.

    A step is applied in the runtime's own form where it can be and no later step needs the other form.
    """
    if runtime.form == "torch":
        for step in recipe:
            if "torch" not in step.forms:
                return f"{step.technique} works on an ONNX graph only; choose an ONNX runtime for it"
        return Plan(torch=tuple(recipe), onnx=())
    first_onnx = len(recipe)
    while first_onnx > 0 and "onnx" in recipe[first_onnx - 1].forms:
        first_onnx -= 1
    for step in recipe[:first_onnx]:
        if "torch" not in step.forms:
            after = recipe[first_onnx - 1].technique
            return f"{step.technique} works on an ONNX graph only, so it can't come before {after}"
        if step.quantizes:
            return f"{step.technique} can't come before {recipe[first_onnx - 1].technique} when the model is exported"
    return Plan(torch=tuple(recipe[:first_onnx]), onnx=tuple(recipe[first_onnx:]))


def computes(recipe: Sequence[Technique], effects: Sequence[StepEffect], source: str) -> str:
    """The number format that matrix products run in: the last packed step's own, else the source's.

    Weights that are only stored narrow (``weight-only``) are computed as wide as before.
    """
    for step, effect in zip(reversed(recipe), reversed(effects), strict=True):
        if step.makes is not None and (effect.label or step.label) is Label.PACKED:
            return step.makes
    return source


def label(recipe: Sequence[Technique], effects: Sequence[StepEffect]) -> Label:
    """What the finished artifact really is: the last step's label that is one of its own.

    A step's effect says where this build differs from what the technique usually makes.
    """
    for step, effect in zip(reversed(recipe), reversed(effects), strict=True):
        made = effect.label or step.label
        if made is not Label.DENSE:
            return made
    return Label.DENSE
