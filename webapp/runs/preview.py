"""What a study would make before it is queued: its experiments, what each needs, and why some can't be done."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.preflight import Preflight, preflight, senseless_problems
from experiments.records import DeviceFacts, Failure
from experiments.spec import ExperimentSpec, Problem, SpecError, StudySpec, parse
from webapp.core import formatting
from webapp.runs import selectors
from webapp.runs.forms import StudyForm
from webapp.runs.pairs import Pair
from webapp.runs.services.submit import host

#: Experiments of a pasted spec that are looked at one by one; a larger grid is only counted.
MAX_POINTS = 60


@dataclass(frozen=True)
class Point:
    """One experiment that would be made."""

    name: str
    how: str
    is_baseline: bool
    preflight: Preflight

    @property
    def needs(self) -> str:
        """Memory, disk and time, as far as they are known before it runs."""
        needs = self.preflight.needs
        parts = []
        if needs.memory_bytes is not None:
            parts.append(f"{formatting.number(needs.memory_bytes / 2**30, 2)} GiB")
        if needs.seconds is not None:
            parts.append(f"{formatting.duration(needs.seconds)} or more")
        return ", ".join(parts) or "not known yet"

    @property
    def refusal(self) -> Failure | None:
        """Why it can't be done, or None."""
        return self.preflight.failures[0] if self.preflight.failures else None


@dataclass(frozen=True)
class StudyPreview:
    """The experiments, the problems that keep the study from being queued, and refused pairs with their reasons."""

    points: tuple[Point, ...] = ()
    total: int = 0
    problems: tuple[Problem, ...] = ()
    refusals: dict[str, str] = field(default_factory=dict)
    splits: str = ""

    @property
    def model(self) -> str:
        """What is known of the model, in a line."""
        facts = next((p.preflight.facts for p in self.points if p.preflight.facts), None)
        if facts is None:
            return ""
        parts = [facts.task or "", facts.dtype, f"{formatting.count(facts.parameters)} parameters"]
        parts.append(formatting.size(facts.weights_bytes))
        if facts.max_length:
            parts.append(f"up to {facts.max_length:,} tokens")
        return ", ".join(part for part in parts if part)

    @property
    def seconds(self) -> float | None:
        """At least this long for all of them, one after another."""
        known = [p.preflight.needs.seconds for p in self.points if p.refusal is None]
        return sum(s for s in known if s is not None) if any(s is not None for s in known) else None

    @property
    def more(self) -> int:
        """Experiments that are counted but not listed."""
        return self.total - len(self.points)

    @property
    def can_submit(self) -> bool:
        """True if the study would be accepted and at least one experiment of it would run."""
        return not self.problems and self.total > 0 and any(p.refusal is None for p in self.points)

    @property
    def notes(self) -> tuple[str, ...]:
        """What preflight has to say of any of them, each sentence once."""
        return tuple(dict.fromkeys(note for point in self.points for note in point.preflight.notes))


class Checker:
    """Looks at experiments with the devices of one moment, asked for once."""

    def __init__(self) -> None:
        self._host = host()
        self._devices: tuple[DeviceFacts, ...] = tuple(selectors.live_devices())

    def __call__(self, spec: ExperimentSpec) -> Preflight:
        return preflight(spec, self._host, self._devices)


def of_spec(spec: StudySpec | None, problems: list[Problem]) -> StudyPreview:
    """The preview of a pasted or uploaded spec."""
    if spec is None:
        return StudyPreview(problems=tuple(problems))
    points = _points(spec, Checker())
    return StudyPreview(points=points, total=len(spec.experiments))


def of_form(form: StudyForm) -> StudyPreview:
    """The preview of the form; problems are put at their fields, and the values that suit the model beside them."""
    check = Checker()
    spec = form.study()
    if spec is None:
        return StudyPreview(problems=tuple(form.problems), refusals=_refusals(form, check))
    form.blame(senseless_problems(spec))
    points = _points(spec, check)
    first_chain = len(form.pairs)
    for index, point in enumerate(points):
        # What is wrong with the whole study shows at its field; what is wrong with one pair shows at the pair, and
        # what is wrong with a recipe at the step that causes it.
        refusal = point.refusal
        if refusal is not None and refusal.field and point.is_baseline:
            form.blame([Problem(path=refusal.field, message=refusal.message)])
        if index >= first_chain:
            for failure in point.preflight.failures:
                if failure.field and failure.field.split(".")[0] in ("recipe", "runtime"):
                    form.note(f"experiments.{index}.{failure.field}", failure.message)
            for path, values in point.preflight.valid.items():
                if path.startswith("recipe."):
                    form.hint(f"experiments.{index}.{path}", values)
    return StudyPreview(
        points=points,
        total=len(points),
        problems=tuple(form.problems),
        refusals=_refusals(form, check),
        splits=_splits(spec),
    )


def _splits(spec: StudySpec) -> str:
    """Where the rows come from that training and calibrating steps learn from."""
    if spec.dataset is None:
        return "Steps that train or calibrate need data."
    train, calibration = spec.dataset.split_for("train"), spec.dataset.split_for("calibration")
    if train is None and calibration is None:
        return "Steps that train or calibrate need a split of their own: name one, never the one that is judged on."
    if train == calibration:
        return f"Steps that train or calibrate learn from split '{train}', never from '{spec.dataset.split}'."
    return f"Training steps learn from split '{train or 'none'}', calibration from '{calibration or 'none'}'."


def _points(spec: StudySpec, check: Checker) -> tuple[Point, ...]:
    return tuple(
        Point(
            name=point.variant.name,
            how=f"{point.variant.recipe_text} on {point.variant.runtime.kind}",
            is_baseline=point.is_baseline,
            preflight=check(point),
        )
        for point in spec.expand()[:MAX_POINTS]
    )


def _refusals(form: StudyForm, check: Checker) -> dict[str, str]:
    """Pair -> why it can't be done with the chosen model, data and device; pairs that can are left out.

    Only what distinguishes a pair counts: a refusal that the model as it is meets too is the study's problem.
    """
    every = [Pair.of(pair.value) for card in form.techniques for pair in card.pairs]
    try:
        pairs = [Pair(None, form.baseline_runtime), *_others(every, form)]
        spec = parse(form.data(pairs, with_chains=False))
    except SpecError:
        return {}
    by_name = {pair.name(form.baseline_runtime): pair.value for pair in every}
    found: dict[str, Failure] = {}
    general: set[str] = set()
    for point in spec.expand():
        seen = check(point)
        failures = seen.failures
        for path, values in seen.valid.items():
            if path.startswith("recipe.0."):
                form.hint_technique(point.variant.recipe[0].technique, path.removeprefix("recipe.0."), values)
        if point.is_baseline:
            general = {failure.message for failure in failures}
        elif failures and failures[0].message not in general:
            found[by_name[point.variant.name]] = failures[0]
    return {value: failure.message for value, failure in found.items()}


def _others(every: list[Pair], form: StudyForm) -> list[Pair]:
    return [pair for pair in every if pair != Pair(None, form.baseline_runtime)]
