"""One contract over every technique, on every runtime and task that it claims, with real small models.

Each combination applies, saves, opens in another process, passes the canary, reports its size from the disk, and its
label is true. One combination a technique runs every time; the others are marked ``slow``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from experiments import canary, catalog, hardware
from experiments.builder import Order, facts_payload
from experiments.launch import Child, Events, Limits
from experiments.models.demo import DEMO_MODELS, DemoModel
from experiments.parts.cache import weight_files
from experiments.parts.packs import make_pack
from experiments.parts.recipe import plan
from experiments.protocols import Ask, DatasetSource, Host, ModelFacts, Runtime, Task, Technique
from experiments.records import ArtifactRecord, Label, StepEffect, digest
from experiments.spec import Workload

#: Trainings are cut short: what is held here is the way, not the score (benchmarks and examples show scores).
SHORT: dict[str, dict[str, Any]] = {
    "finetune": {"steps": 3},
    "distill": {"steps": 3},
    "lora": {"steps": 3},
}
#: Task -> a demo model and demo data that serve it; the first that a technique serves is the one that always runs.
SUBJECTS: dict[Task, tuple[str, str]] = {
    "image-classification": ("digits-vit", "digits"),
    "text-classification": ("minilm-reviews", "reviews"),
    "feature-extraction": ("minilm-reviews", "reviews"),
    "text-generation": ("smollm2-135m", "python-docs"),
}


@dataclass(frozen=True)
class Combination:
    """One technique on one runtime for one task."""

    technique: str
    runtime: str
    task: Task

    @property
    def step(self) -> Technique:
        config = catalog.plugins("technique")[self.technique]
        made: Technique = config(**SHORT.get(self.technique, {}))
        return made

    @property
    def ran_on(self) -> Runtime:
        made: Runtime = catalog.plugins("runtime")[self.runtime]()
        return made

    def why_not(self) -> str | None:
        """Why it is refused on this machine's CPU, or None."""
        step, runtime = self.step, self.ran_on
        if "cpu" not in step.devices or "cpu" not in runtime.devices:
            return "not on a CPU"
        planned = plan((step,), runtime)
        if isinstance(planned, str):
            return planned
        ask = Ask(task=self.task, device="cpu", runtime=runtime, recipe=(step,), model=facts_of(SUBJECTS[self.task][0]))
        return step.refuse(ask) or runtime.refuse(ask)


def facts_of(name: str) -> ModelFacts:
    """What is known of a demo model before it is made."""
    return next(demo.facts for demo in DEMO_MODELS if demo.name == name)


def combinations() -> list[Any]:
    """Every combination that is claimed; all but each technique's first are slow."""
    found = []
    for technique, config in catalog.plugins("technique").items():
        first = True
        for task in SUBJECTS:
            # What compiles takes longest: it is nobody's first.
            for runtime, run in sorted(catalog.plugins("runtime").items(), key=lambda item: item[1].fuses):
                if task not in config.tasks or task not in run.tasks:
                    continue
                made = Combination(technique, runtime, task)
                if made.why_not() is not None:
                    continue
                marks = [] if first else [pytest.mark.slow]
                found.append(pytest.param(made, id=f"{technique}-{runtime}-{task}", marks=marks))
                first = False
    return found


@pytest.fixture(scope="module")
def builder() -> Iterator[Child]:
    with Child("build", Events(lambda event: None), Limits(3600, None)) as child:
        yield child


@pytest.fixture(scope="module")
def opener() -> Iterator[Child]:
    """A process that never built anything."""
    with Child("measure", Events(lambda event: None), Limits(3600, None)) as child:
        yield child


def made(
    builder: Child, folder: Path, combination: Combination, recipe: tuple[Technique, ...]
) -> tuple[Path, list[str]]:
    """Build an artifact as the pipeline does; its folder, and what was reused for it."""
    name, data = SUBJECTS[combination.task]
    cache = Path(os.environ["STEELYARD_CACHE"])
    host = Host(cache=cache)
    model = DemoModel(name=name)
    source = Path(
        builder.call("fetch", model=model.model_dump(mode="json"), cache=str(cache), path_roots=None, offline=False)[
            "folder"
        ]
    )
    facts = model.inspect(host)
    assert facts is not None
    dataset: DatasetSource = catalog.plugins("dataset")["demo"](name=data, limit=16 if data != "python-docs" else 2)
    pack = folder / "pack"
    pack.mkdir(exist_ok=True)
    workload = Workload(sequence_length=32)
    if not (pack / "manifest.json").exists():
        make_pack(
            pack,
            model=source,
            facts=facts,
            task=combination.task,
            examples=dataset.load(host, combination.task),
            workload=workload,
            seed=0,
        )
    out = folder / ("-".join(step.technique for step in recipe) or "as-is")
    out.mkdir()
    order = Order(
        source=str(source),
        facts=facts_payload(facts),
        task=combination.task,
        device="cpu",
        recipe=tuple(step.model_dump(mode="json") for step in recipe),
        runtime=combination.ran_on.model_dump(mode="json"),
        dataset=dataset.model_dump(mode="json"),
        pack=str(pack),
        seed=0,
        threads=len(hardware.allowed_cores()),
        sequence_length=workload.sequence_length,
        isa=hardware.isa(),
        model_sha256=digest([name, combination.task, dataset.model_dump(mode="json")]),
        data={},
        libraries={},
        cache=str(cache),
        path_roots=None,
        offline=False,
    )
    answer = builder.call("build", out=str(out), order=order.model_dump(mode="json"))
    return out, answer["reused"]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("combination", combinations())
def test_it_applies_saves_opens_elsewhere_and_its_label_is_true(
    builder: Child, opener: Child, tmp_path: Path, combination: Combination
) -> None:
    folder, _ = made(builder, tmp_path, combination, (combination.step,))
    plain, _ = made(builder, tmp_path, combination, ())
    built = json.loads((folder / "built.json").read_text())
    record = ArtifactRecord.model_validate(built["record"])
    whole = ArtifactRecord.model_validate(json.loads((plain / "built.json").read_text())["record"])
    effect = StepEffect.model_validate(built["effects"][0])

    assert effect.technique == combination.technique
    assert effect.changed > 0 and effect.summary

    files = folder / "files"
    assert record.bytes == sum((files / name).stat().st_size for name in weight_files(files))
    match record.label:
        case Label.PACKED | Label.WEIGHT_ONLY:
            assert record.bytes < whole.bytes
        case Label.MASKED_SPARSE:
            assert record.bytes > 0.99 * whole.bytes, "a mask claims no size"
            assert built["work"]["zeros"] > 0
            assert effect.zeros
        case Label.DENSE:
            assert not catalog.plugins("technique")[combination.technique].quantizes

    opener.call(
        "open",
        folder=str(files),
        runtime=combination.ran_on.model_dump(mode="json"),
        device="cpu",
        threads=len(hardware.allowed_cores()),
        pack=str(tmp_path / "pack"),
        task=combination.task,
        new_tokens=4,
    )
    answers = tmp_path / "answers"
    answers.mkdir()
    opener.call("probe", out=str(answers))
    assert canary.inspect(
        folder, answers, dtype=record.dtype, quantized=built["quantized"], fused=combination.ran_on.fuses
    ).passed


def test_a_recipe_goes_on_from_what_others_that_begin_alike_have_left(builder: Child, tmp_path: Path) -> None:
    eager = Combination("finetune", "torch-eager", "image-classification")
    graph = Combination("finetune", "onnxruntime", "image-classification")
    steps = catalog.plugins("technique")
    beginning = (steps["prune-structured"](), eager.step)
    first, _ = made(builder, tmp_path, eager, beginning)

    narrow, reused = made(builder, tmp_path, graph, (*beginning, steps["int8-dynamic"]()))
    assert "the module of prune-structured -> finetune" in reused or (
        "the export of prune-structured -> finetune" in reused  # where the cache outlives the session
    )

    # In a process of its own the export is all that is needed, until a method asks for the module behind it.
    with Child("build", Events(lambda event: None), Limits(3600, None)) as fresh:
        four_bits = steps["int4-weight-only"](method="gptq", group_size=16, samples=8)
        coded, reused = made(fresh, tmp_path, graph, (*beginning, four_bits))
    assert "the export of prune-structured -> finetune" in reused

    def told(folder: Path) -> list[dict[str, Any]]:
        effects: list[dict[str, Any]] = json.loads((folder / "built.json").read_text())["effects"]
        return effects

    assert [effect["technique"] for effect in told(narrow)] == ["prune-structured", "finetune", "int8-dynamic"]
    assert told(narrow)[:2] == told(coded)[:2] == told(first)


def test_every_technique_has_a_combination_or_says_why_not_here() -> None:
    covered = {param.values[0].technique for param in combinations()}
    for name in set(catalog.plugins("technique")) - covered:
        config = catalog.plugins("technique")[name]
        reasons = {
            Combination(name, runtime, task).why_not()
            for task in SUBJECTS
            for runtime in catalog.plugins("runtime")
            if task in config.tasks
        }
        assert "cpu" not in config.devices or None not in reasons
        assert all(reasons), f"{name} is refused everywhere without a reason"
