"""In which form each step of a recipe is applied. One rule, for preflight and for the builder; torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from experiments.protocols import Runtime, Technique, Use
from experiments.records import Label, StepEffect

if TYPE_CHECKING:
    from experiments.spec import Variant


USES: tuple[Use, ...] = get_args(Use)


def uses(variant: Variant) -> frozenset[Use]:
    """The rows, besides those that quality is judged on, that some step of the recipe can't do without."""
    return frozenset(use for step in variant.recipe for use in step.needs())


@dataclass(frozen=True)
class Plan:
    """The steps before the export (on the torch module) and after it (on the ONNX graph), in the order of applying.

    ``through``: index in ``torch`` of a training step -> the quantizer whose rounding it learns to live with. Such a
    step is written after the quantizer and applied before it, since integer weights can't be trained.
    """

    torch: tuple[Technique, ...]
    onnx: tuple[Technique, ...]
    through: Mapping[int, Technique] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[Technique, ...]:
        """All steps in the order of applying."""
        return (*self.torch, *self.onnx)


def plan(recipe: Sequence[Technique], runtime: Runtime) -> Plan | str:
    """The plan, or one sentence why this recipe can't be made for this runtime.

    A step is applied in the runtime's own form where it can be and no later step needs the other form.
    """
    ordered = _ordered(recipe)
    if isinstance(ordered, str):
        return ordered
    steps, through = ordered
    if runtime.form == "torch":
        for step in steps:
            if "torch" not in step.forms:
                return f"{step.technique} works on an ONNX graph only; choose an ONNX runtime for it"
        return Plan(torch=tuple(steps), onnx=(), through=through)
    first_onnx = len(steps)
    while first_onnx > 0 and "onnx" in steps[first_onnx - 1].forms:
        first_onnx -= 1
    for step in steps[:first_onnx]:
        if "torch" not in step.forms:
            after = steps[first_onnx - 1].technique
            return f"{step.technique} works on an ONNX graph only, so it can't come before {after}"
        if step.quantizes:
            return f"{step.technique} has no form that can be exported; choose runtime torch-eager for it"
        if why := step.must_be_last():
            return f"{step.technique} can't be exported, because {why}"
    return Plan(torch=tuple(steps[:first_onnx]), onnx=tuple(steps[first_onnx:]), through=through)


def _ordered(recipe: Sequence[Technique]) -> tuple[list[Technique], dict[int, Technique]] | str:
    """The steps in the order of applying, and which of them train through which quantizer's rounding."""
    steps: list[Technique] = []
    through: dict[int, Technique] = {}
    narrow: Technique | None = None
    for number, step in enumerate(recipe):
        for earlier in recipe[:number]:
            if why := earlier.must_be_last():
                return f"{step.technique} can't come after {earlier.technique}, because {why}"
        if narrow is not None and step.learns_rounding and narrow.quantizes:
            through[len(steps) - 1] = narrow
            steps.insert(len(steps) - 1, step)
            continue
        if narrow is not None and narrow.quantizes and not step.quantizes:
            return (
                f"{step.technique} can't come after {narrow.technique}: the weights are quantized by then; "
                f"put it before {narrow.technique}"
            )
        if narrow is not None and step.alters:
            return (
                f"{step.technique} can't come after {narrow.technique}: it needs float32 weights; "
                f"put it before {narrow.technique}"
            )
        if step.quantizes or step.sets_number_format:
            narrow = step
        steps.append(step)
    return steps, through


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
