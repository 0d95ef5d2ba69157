"""A recipe may set the number format of the linear layers once."""

from __future__ import annotations

from experiments.protocols import Ask, Technique


def second_format(ask: Ask, technique: Technique) -> str | None:
    """Why ``technique`` can't stand in this recipe beside another step that also sets the number format, or None."""
    setters = [step for step in ask.recipe if step.sets_number_format]
    if len(setters) < 2 or technique not in setters:
        return None
    names = " and ".join(step.technique for step in setters)
    return (
        f"{names} each set the number format of the same layers; keep one of them and compare them as two experiments"
    )
