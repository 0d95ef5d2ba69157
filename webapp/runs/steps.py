"""The steps of an experiment's recipe as its page shows them: what each changed, warned, kept, learnt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments import catalog
from experiments.records import Report, StepEffect
from webapp.compare.figures import Chart, axis, layout, wants_log
from webapp.core import formatting

#: More kept layers than these are folded away.
MAX_OPEN = 4
#: Rows of a loss curve's table.
MAX_ROWS = 40


@dataclass(frozen=True)
class Bar:
    """One layer's sensitivity: ``width`` is its share of the largest, in percent."""

    layer: str
    text: str
    width: float
    kept: bool


@dataclass(frozen=True)
class Step:
    """One step of the recipe."""

    technique: str
    title: str
    settings: tuple[tuple[str, str], ...]
    effect: StepEffect | None
    kept: tuple[tuple[str, tuple[str, ...]], ...]
    sensitivity: tuple[Bar, ...]
    sensitivity_summary: str
    losses: Chart | None

    @property
    def kept_count(self) -> int:
        """Layers that were left as they were."""
        return sum(len(layers) for _, layers in self.kept)

    @property
    def folded(self) -> bool:
        """True if there are too many kept layers to read in passing."""
        return self.kept_count > MAX_OPEN

    @property
    def numbers(self) -> tuple[tuple[str, str], ...]:
        """What was counted: name and number."""
        if self.effect is None:
            return ()
        counted = (("parameters removed", self.effect.removed), ("weights set to zero", self.effect.zeros))
        return tuple((name, f"{value:,}") for name, value in counted if value)


def steps(report: Report) -> tuple[Step, ...]:
    """The recipe's steps in the order in which they were applied, then those that left no effect."""
    recipe = list((report.spec.get("variant") or {}).get("recipe") or ())
    made: list[Step] = []
    for effect in report.effects:
        settings = next((step for step in recipe if step.get("technique") == effect.technique), None)
        if settings is not None:
            recipe.remove(settings)
        made.append(_step(effect.technique, settings or {}, effect, len(made)))
    return (*made, *(_step(str(left.get("technique")), left, None, len(made) + i) for i, left in enumerate(recipe)))


def figures(steps: Sequence[Step]) -> dict[str, Any]:
    """Chart key -> figure, for the page's script."""
    return {step.losses.key: step.losses.figure for step in steps if step.losses is not None}


def _step(technique: str, settings: Mapping[str, Any], effect: StepEffect | None, number: int) -> Step:
    config = catalog.plugins("technique").get(technique)
    return Step(
        technique=technique,
        title=(config.title if config else "") or technique,
        settings=tuple((key, _value(value)) for key, value in settings.items() if key != "technique"),
        effect=effect,
        kept=_grouped(effect.kept) if effect else (),
        sensitivity=_bars(effect) if effect else (),
        sensitivity_summary=_most_sensitive(effect) if effect and effect.sensitivity else "",
        losses=_curve(effect, number) if effect and len(effect.losses) > 1 else None,
    )


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value in ((), []):
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _grouped(kept: Mapping[str, str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Reason -> layers, the commonest reason first."""
    reasons: dict[str, list[str]] = {}
    for layer, why in kept.items():
        reasons.setdefault(why, []).append(layer)
    return tuple(sorted(((why, tuple(layers)) for why, layers in reasons.items()), key=lambda item: -len(item[1])))


def _bars(effect: StepEffect) -> tuple[Bar, ...]:
    ordered = sorted(effect.sensitivity, key=lambda layer: -layer.divergence)
    largest = max((layer.divergence for layer in ordered), default=0.0)
    return tuple(
        Bar(
            layer=layer.layer,
            text=formatting.number(layer.divergence),
            width=round(100 * max(0.0, layer.divergence) / largest, 2) if largest > 0 else 0.0,
            kept=layer.kept,
        )
        for layer in ordered
    )


def _most_sensitive(effect: StepEffect) -> str:
    first = max(effect.sensitivity, key=lambda layer: layer.divergence)
    kept = sum(layer.kept for layer in effect.sensitivity)
    measure = f" ({effect.sensitivity_measure})" if effect.sensitivity_measure else ""
    return (
        f"Made narrow alone, {first.layer} moves the answers most: {formatting.number(first.divergence)}{measure}. "
        f"{kept} of {len(effect.sensitivity)} layers were kept wide."
    )


def _curve(effect: StepEffect, number: int) -> Chart:
    """The loss over the steps of a training."""
    points = effect.losses
    (_, begin), (last, end) = points[0], points[-1]
    lowest = min(points, key=lambda point: point[1])
    log = wants_log([loss for _, loss in points])
    where = f", lowest at step {lowest[0]:,} ({formatting.number(lowest[1])})" if lowest[0] != last else ""
    every = max(1, -(-len(points) // MAX_ROWS))
    rows = [point for index, point in enumerate(points) if index % every == 0 or index == len(points) - 1]
    return Chart(
        key=f"loss-{number}",
        title=f"Loss of {effect.technique}",
        summary=(
            f"The loss went from {formatting.number(begin)} to {formatting.number(end)} in {last:,} steps{where}."
        ),
        figure={
            "data": [
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(points) < 40 else "lines",
                    "x": [step for step, _ in points],
                    "y": [loss for _, loss in points],
                    "line": {"color": "var(--steel)", "width": 2},
                    "marker": {"size": 5},
                    "hovertemplate": "step %{x:,}: %{y:.4~g}<extra></extra>",
                }
            ],
            "layout": layout(
                xaxis=axis("step", rangemode="tozero"),
                yaxis=axis(f"loss{' (log)' if log else ''}", log=log),
                height=260,
            ),
        },
        head=("Step", "Loss"),
        body=tuple((f"{step:,}", formatting.number(loss)) for step, loss in rows),
    )
