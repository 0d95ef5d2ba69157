"""Can this experiment run, what does it need, which values are valid? Without torch, network or waiting.

The form asks while a person types, the API when a study is submitted, and the worker again before it starts.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import Field

from experiments import catalog
from experiments.parts.architectures import tasks_of
from experiments.parts.overlap import refuse_overlap, row_keys
from experiments.parts.packs import class_targets
from experiments.parts.recipe import USES, plan, uses
from experiments.protocols import TASKS, Ask, DatasetSource, Host, ModelFacts, Runtime, Task, Technique, Use
from experiments.records import DeviceFacts, ExperimentError, Failure, FailureKind, Record
from experiments.spec import ExperimentSpec, Problem, StudySpec, Variant

#: A measured process with its libraries, beside its weights (bytes).
PROCESS_BYTES = 600 << 20
#: Copies of the weights that live at once while a model is exported, checked and saved.
BUILD_COPIES = 3
_WIDTH = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}


class Needs(Record):
    """What an experiment will take, estimated from sizes that are known before it runs."""

    memory_bytes: int | None = Field(default=None, description="Main memory (or device memory) at its peak.")
    disk_bytes: int | None = Field(default=None, description="Cache space for the artifacts, at most.")
    seconds: float | None = Field(default=None, description="At least this long, of which most is timing.")
    basis: str = Field(default="", description="What the estimates are made from.")


class Preflight(Record):
    """What is known of an experiment before it runs. With failures it can't; notes are for people."""

    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    facts: ModelFacts | None = None
    task: Task | None = None
    needs: Needs = Needs()
    valid: dict[str, Any] = Field(default_factory=dict, description="Field -> its valid values or {'max': ..}.")


def preflight(spec: ExperimentSpec, host: Host, devices: Sequence[DeviceFacts] = ()) -> Preflight:
    """Check one experiment; ``devices`` are those of all known workers (none known: nothing is refused for them)."""
    check = _Check(spec, host, tuple(devices))
    check.guard(check.model)
    check.guard(check.task_fits)
    check.guard(check.length)
    check.guard(check.device)
    check.guard(check.recipe)
    check.guard(check.plugins)
    check.guard(check.data)
    return check.result()


def resolve_task(spec: ExperimentSpec, facts: ModelFacts) -> Task:
    """The spec's task, else the one that the model's architecture is for.

    Raises:
        ExperimentError: ``unsupported`` if neither says one ('choose a task: ...'), or the model lacks the weights.
    """
    possible = tasks_of(facts.model_type, facts.architectures) or TASKS
    task = spec.task or facts.task
    if task is None:
        why = f"{facts.architectures[0]} is for none of them" if facts.architectures else "config.json names none"
        raise _unsupported(
            f"choose a task: {', '.join(possible)} ({facts.name}'s architecture does not say it: {why})",
            "Set 'task' to one of them.",
            "task",
        )
    if task not in possible:
        made_for = facts.architectures[0] if facts.architectures else facts.model_type
        raise _unsupported(
            f"{facts.name} is a {made_for}: it has no trained weights for {task}",
            f"Choose one of: {', '.join(possible)}; or another model.",
            "task",
        )
    return task


def senseless(variant: Variant) -> str | None:
    """Why this recipe makes no sense for any model (a spec that should be refused as such), or None."""
    quantizing = [step.technique for step in variant.recipe if step.quantizes]
    if len(quantizing) > 1:
        return f"{' and '.join(quantizing)} both quantize: the second would find no floating-point weights; keep one"
    planned = plan(variant.recipe, variant.runtime)
    return planned if isinstance(planned, str) else None


def senseless_problems(spec: StudySpec) -> list[Problem]:
    """Every recipe of a study that makes no sense, by its path: such a spec is refused whole, nothing is run."""
    return [
        Problem(path=f"experiments.{index}.recipe", message=why)
        for index, variant in enumerate(spec.experiments)
        if (why := senseless(variant)) is not None
    ]


class _Check:
    """One preflight in progress: each method is one question; what it raises becomes a failure."""

    def __init__(self, spec: ExperimentSpec, host: Host, devices: tuple[DeviceFacts, ...]) -> None:
        self.spec = spec
        self.host = host
        self.devices = devices
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self.valid: dict[str, Any] = {}
        self.facts: ModelFacts | None = None
        self.task: Task | None = spec.task

    def guard(self, question: Callable[[], None]) -> None:
        """Ask ``question``; an error is kept and the next question is asked all the same."""
        try:
            question()
        except ExperimentError as error:
            self.failures.append(error.failure)

    def result(self) -> Preflight:
        """All that was found."""
        return Preflight(
            failures=tuple(self.failures),
            notes=tuple(dict.fromkeys(self.notes)),
            facts=self.facts,
            task=self.task,
            needs=_needs(self.spec, self.facts, self.task),
            valid=self.valid,
        )

    def model(self) -> None:
        """Is the model there, whole and of a known kind?"""
        self.facts = self.spec.model.inspect(self.host)
        if self.facts is None:
            self.notes.append(
                f"{self.spec.model.display()} is not on this machine yet; what depends on it is checked when it is"
            )
            return
        self.notes += self.facts.notes
        if self.spec.model.ready(self.host) is None:
            self.notes.append(f"{self.facts.name} is made ready once, on first use")

    def task_fits(self) -> None:
        """Is the task known, and has the model weights for it?"""
        if self.facts is None:
            if self.task is None:
                self.notes.append("the task will be that of the model's architecture")
            return
        self.valid["task"] = list(tasks_of(self.facts.model_type, self.facts.architectures) or TASKS)
        self.task = resolve_task(self.spec, self.facts)
        if self.task == "text-classification" and len(self.facts.labels) == 1:
            raise _unsupported(
                f"{self.facts.name} has one output, a regression: there are no classes to tell apart",
                "Choose a model with two classes or more.",
                "model",
            )

    def length(self) -> None:
        """Do the tokens fit into the model?"""
        if self.facts is None or self.facts.max_length is None or self.task in (None, "image-classification"):
            return
        work, most = self.spec.workload, self.facts.max_length
        generated = work.new_tokens if self.task == "text-generation" else 0
        self.valid["workload.sequence_length"] = {"min": 1, "max": max(1, most - generated)}
        if work.sequence_length + generated > most:
            asked = f"{work.sequence_length:,}" + (f" + {generated:,} new" if generated else "")
            raise _unsupported(
                f"{asked} tokens are more than the {most:,} that {self.facts.name} can hold",
                f"Set workload.sequence_length to at most {max(1, most - generated):,}.",
                "workload.sequence_length",
            )

    def recipe(self) -> None:
        """Do the steps make sense in this order, in the forms that the runtime needs?"""
        if why := senseless(self.spec.variant):
            raise _unsupported(why, "Change the order of the steps, or make two experiments of them.", "recipe")

    def plugins(self) -> None:
        """Can each step, the runtime and the layout do this task on this device, each for itself and together?"""
        if self.task is None:
            return
        variant, kind = self.spec.variant, self.spec.resources.device
        ask = Ask(
            task=self.task,
            device=kind,
            runtime=variant.runtime,
            recipe=variant.recipe,
            model=self.facts,
            devices=tuple(device for device in self.devices if device.kind == kind),
        )
        for index, step in enumerate(variant.recipe):
            self._served(step, "technique", step.technique, f"recipe.{index}")
            if self.facts is not None:
                self.valid |= {f"recipe.{index}.{field}": values for field, values in step.valid(self.facts).items()}
            if senseless(variant) is None:  # else it is said of the whole recipe
                self._refused(step.refuse(ask), step.technique, f"recipe.{index}")
        self._served(variant.runtime, "runtime", variant.runtime.kind, "runtime")
        self._refused(variant.runtime.refuse(ask), variant.runtime.kind, "runtime")
        self._refused(variant.layout.refuse(ask), variant.layout.kind, "layout")

    def device(self) -> None:
        """Is there a device of the kind, and are there enough?"""
        kind, needed = self.spec.resources.device, self.spec.devices
        world = self.spec.variant.layout.world_size()
        given = self.spec.resources.count
        if given is not None and given < world and not self.spec.variant.layout.oversubscribe:
            raise _unsupported(
                f"{self.spec.variant.layout.kind} needs {world} devices, but resources.count is {given}",
                f"Set resources.count to {world}, or layout.oversubscribe to true.",
                "resources.count",
            )
        if not self.devices:
            self.notes.append("no worker is known yet: the experiment waits for one")
            return
        fit = [device for device in self.devices if device.kind == kind]
        known = ", ".join(sorted({f"{device.name} ({device.model})" for device in self.devices})[:5])
        if not fit:
            raise _unsupported(
                f"no known worker has a {kind} device; there are: {known}",
                f"Start a worker on a machine with one, or set resources.device to {self.devices[0].kind}.",
                "resources.device",
            )
        if len(fit) < needed:
            raise _unsupported(
                f"{needed} {kind} devices are needed at once, the known workers have {len(fit)}",
                "Start a worker with more (--devices cpu:0,cpu:1 splits one), or set layout.oversubscribe to true.",
                "resources.count",
            )
        self._memory(fit, world)

    def data(self) -> None:
        """Can the data be read, does it suit the task, and do its classes belong to the model?"""
        source = self.spec.dataset
        self._rows_to_learn_from(source)
        if source is None:
            self.notes.append("no dataset: speed, size and fidelity are told, the quality on a task is not")
            return
        if self.task is None:
            return
        seen = _data_facts(source, self.host, self.task, source.split, source.stamp(self.host))
        if seen is None:
            self.notes.append(f"{source.display()} is checked when it is fetched or read")
            return
        self.notes += seen.notes
        if self.task.endswith("classification"):
            self._classes(seen)
        needed = uses(self.spec.variant)
        named = {"train": source.train_split, "calibration": source.calibration_split}
        for use in USES:
            split = source.split_for(use) if use in needed else named[use]
            if split is not None:
                self._other_split(source, seen, use, split)

    def _rows_to_learn_from(self, source: DatasetSource | None) -> None:
        """A step that trains or calibrates needs rows of its own, never those that quality is judged on."""
        for index, step in enumerate(self.spec.variant.recipe):
            for use in sorted(step.needs()):
                if source is None or source.split_for(use) is None:
                    what = "a dataset" if source is None else f"dataset.{use}_split"
                    self.failures.append(
                        _failure(
                            f"{step.technique} needs {use} rows, and the study names none",
                            f"Set {what}: rows that are not among those that quality is judged on.",
                            f"recipe.{index}",
                        )
                    )

    def _served(self, plugin: Technique | Runtime, kind: catalog.Kind, name: str, field: str) -> None:
        device = self.spec.resources.device
        if self.task not in plugin.tasks:
            others = _others(kind, name, lambda other: self.task in other.tasks and device in other.devices)
            self.failures.append(
                _failure(f"{name} can't do {self.task}; it does {', '.join(sorted(plugin.tasks))}", f"{others}.", field)
            )
        if device not in plugin.devices:
            others = _others(kind, name, lambda other: device in other.devices and self.task in other.tasks)
            runs = ", ".join(sorted(plugin.devices))
            self.failures.append(
                _failure(
                    f"{name} runs on {runs} only, not on {device}",
                    f"{others}, or set resources.device to {sorted(plugin.devices)[0]}.",
                    field,
                )
            )

    def _refused(self, why: str | None, name: str, field: str) -> None:
        if why is not None and not any(failure.field == field for failure in self.failures):
            self.failures.append(_failure(why, f"Choose something else than {name}, or change what it names.", field))

    def _memory(self, fit: list[DeviceFacts], world: int) -> None:
        if self.facts is None:
            return
        weights = _weights_bytes(self.facts)
        limit_mib = self.spec.resources.memory_mib
        if limit_mib is not None and weights > limit_mib << 20:
            raise _unsupported(
                f"the weights alone take {weights / 2**20:,.0f} MiB, resources.memory_mib is {limit_mib:,}",
                "Raise resources.memory_mib, or choose a smaller model.",
                "resources.memory_mib",
            )
        sizes = [device.memory_bytes for device in fit]
        largest = max((size for size in sizes if size is not None), default=0)
        if None not in sizes and weights / world > largest:
            raise _unsupported(
                f"the weights alone take {weights / world / 2**30:,.1f} GiB a device, the largest has "
                f"{largest / 2**30:,.1f} GiB",
                "Choose a smaller model, or a layout that shards it over more devices.",
                "model",
            )
        needs = _needs(self.spec, self.facts, self.task)
        if needs.memory_bytes and limit_mib is not None and needs.memory_bytes > limit_mib << 20:
            self.notes.append(
                f"about {needs.memory_bytes / 2**20:,.0f} MiB may be needed, resources.memory_mib is {limit_mib:,}"
            )
        if needs.disk_bytes and self.host.cache.exists():
            free = shutil.disk_usage(self.host.cache).free
            if needs.disk_bytes > free:
                self.notes.append(
                    f"up to {needs.disk_bytes / 2**20:,.0f} MiB of disk may be needed, {free / 2**20:,.0f} MiB are free"
                )

    def _classes(self, seen: _DataFacts) -> None:
        present = sorted(seen.classes)
        if len(present) == 1:
            self.notes.append(
                f"all {seen.rows:,} rows have the class {present[0]!r}: accuracy is told; AUC and F1 are undefined"
            )
        if self.facts is None or not self.facts.labels:
            return
        self.valid["dataset.columns.label"] = list(self.facts.labels)[:1000]
        _check_classes(tuple(present), self.facts)
        if not set(present) <= set(self.facts.labels):
            by_case = {name.casefold() for name in present} <= {name.casefold() for name in self.facts.labels}
            how = "without regard to case" if by_case else "by number or in sorted order, since the model names none"
            self.notes.append(f"classes of the data are matched with the model's {how}")

    def _other_split(self, source: DatasetSource, seen: _DataFacts, use: Use, split: str) -> None:
        assert self.task is not None
        other = _data_facts(source, self.host, self.task, split, source.stamp(self.host))
        if other is None:
            return
        if use == "train" and self.task.endswith("classification") and len(other.classes) < 2:
            raise ExperimentError(
                FailureKind.BAD_DATASET,
                f"all {other.rows:,} rows of the training split {split!r} have one class "
                f"({', '.join(map(repr, other.classes))}): there is nothing to learn",
                fix="Train on rows of two classes or more.",
                field="dataset.train_split",
            )
        refuse_overlap(seen.keys, other.keys, use, split)


@dataclass(frozen=True)
class _DataFacts:
    """What preflight keeps of a split: never its rows, which would fill a web process."""

    name: str
    rows: int
    classes: dict[str, int]
    notes: tuple[str, ...]
    keys: frozenset[bytes]


@dataclass(frozen=True)
class _DataKey:
    """A dataset that hashes by its contents as JSON (its mapping of columns can't be hashed)."""

    source: DatasetSource

    def __hash__(self) -> int:
        return hash(self.source.model_dump_json())


def _data_facts(source: DatasetSource, host: Host, task: Task, split: str, stamp: str) -> _DataFacts | None:
    answer = _remembered(_DataKey(source), _Place(host), task, split, stamp)
    if isinstance(answer, Failure):
        raise ExperimentError.of(answer)
    return answer


@dataclass(frozen=True)
class _Place:
    """A host that is told from others by its folders only."""

    host: Host

    def __hash__(self) -> int:
        return hash((self.host.cache, self.host.path_roots))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and (self.host.cache, self.host.path_roots) == (
            other.host.cache,
            other.host.path_roots,
        )


@lru_cache(maxsize=64)
def _remembered(source: _DataKey, place: _Place, task: Task, split: str, _stamp: str) -> _DataFacts | Failure | None:
    try:
        rows = source.source.peek(place.host, task, split)
    except ExperimentError as error:
        return error.failure
    if rows is None:
        return None
    return _DataFacts(
        name=rows.name,
        rows=len(rows),
        classes=dict(Counter(rows.labels or ())),
        notes=rows.notes,
        keys=row_keys(rows),
    )


def _check_classes(present: tuple[str, ...], facts: ModelFacts) -> None:
    """Raise ``bad_dataset`` as the evaluation itself would, from the classes alone."""
    from experiments.protocols import Examples

    class_targets(Examples(name="the data", sha256="", texts=present, labels=present), facts)


def _others(kind: catalog.Kind, name: str, fits: Callable[[Any], bool]) -> str:
    """'Choose a, b or c', from the catalogue."""
    names = [other for other, config in catalog.plugins(kind).items() if other != name and fits(config)]
    return f"Choose {', '.join(names[:5])}" if names else f"No {kind} can do this yet"


def _needs(spec: ExperimentSpec, facts: ModelFacts | None, task: Task | None) -> Needs:
    work = spec.workload
    seconds = len(work.batch_sizes) * work.min_seconds * 2
    timing = f"timing alone: {len(work.batch_sizes)} batch sizes x {work.min_seconds:g} s x 2 sides"
    if facts is None:
        return Needs(seconds=seconds, basis=timing)
    weights = _weights_bytes(facts)
    batch = max(work.batch_sizes)
    width = facts.vocab_size if task == "text-generation" else facts.hidden_size
    activations = 4 * batch * work.sequence_length * (width or 0) * (1 if task == "text-generation" else 8)
    building = BUILD_COPIES * weights + PROCESS_BYTES
    measuring = 2 * (weights + PROCESS_BYTES + activations)
    return Needs(
        memory_bytes=max(building, measuring),
        disk_bytes=2 * weights + (weights if spec.variant.runtime.form == "onnx" else 0),
        seconds=seconds,
        basis=f"{timing}; memory and disk from {facts.parameters / 1e6:,.1f} M parameters as {facts.dtype}",
    )


def _weights_bytes(facts: ModelFacts) -> int:
    return facts.parameters * _WIDTH.get(facts.dtype, 4)


def _failure(message: str, fix: str, field: str) -> Failure:
    return Failure(kind=FailureKind.UNSUPPORTED, message=message, fix=fix, field=field)


def _unsupported(message: str, fix: str, field: str) -> ExperimentError:
    return ExperimentError(FailureKind.UNSUPPORTED, message, fix=fix, field=field)
