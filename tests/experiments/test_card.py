"""The card of an artifact: true, whole, and safe from what users write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from experiments import card
from experiments.records import ArtifactRecord, Label, LayerSensitivity, Report, StepEffect
from experiments.spec import ExperimentSpec, parse
from tests.webapp import study_reports


def report(name: str = "int8-dynamic", **changes: Any) -> Report:
    """A report as the engine makes it, of a study of two."""
    spec = parse(study_reports.study_spec(["fp32", "int8-dynamic"]))
    made = study_reports.report("int8-dynamic", spec.expand()[1].canonical())
    return made.model_copy(update={"experiment": name, **changes})


def test_the_card_tells_recipe_settings_effects_metrics_and_fingerprint() -> None:
    text = card.readme(report())
    for said in (
        "**int8-dynamic**: keep = `[]`, max_drop = `null`, per_channel = `true`, reduce_range = `auto`",
        "36 of 37 linear layers quantized",
        "`classifier` (fewer than 1,024 weights)",
        "**packed** (stored small and computed small): 36.1 MB",
        "Baseline: **fp32** (the model as it is on torch-eager)",
        "| 0.884 | 0.854 to 0.908 | 500 |",
        "* No number, insufficient (625 of 662): Latency p99 (batch size 1",
        "9c04" * 16,
        "torch 2.13.0",
        "steelyard run spec.yaml --artifacts rebuilt",
        "states no licence",
    ):
        assert said in text, said


def test_warnings_and_what_was_removed_are_told() -> None:
    effect = StepEffect(
        technique="int8-dynamic",
        summary="done",
        changed=1,
        of=1,
        removed=1_200_000,
        zeros=7,
        warnings=("half of it | is *gone*",),
        sensitivity=(LayerSensitivity(layer="a", divergence=0.1, kept=True),),
    )
    text = card.readme(report(effects=(effect,)))
    assert "1,200,000 parameters removed" in text
    assert "7 weights set to zero" in text
    assert "**Mind:** half of it \\| is \\*gone\\*" in text


def test_the_spec_beside_it_is_the_experiment_itself() -> None:
    made = report()
    again = parse(card.rebuilding_spec(made)).expand()
    assert [point.variant.name for point in again] == ["fp32", "int8-dynamic"]
    assert again[1].canonical() == ExperimentSpec.model_validate(made.spec).canonical()


def test_a_baselines_own_card_has_one_experiment() -> None:
    spec = parse(study_reports.study_spec(["fp32", "fp16"])).expand()[0].canonical()
    made = study_reports.report("fp32", spec)
    assert [v.name for v in parse(card.rebuilding_spec(made)).experiments] == ["fp32"]
    assert "The model as it is, no step." in card.readme(made)


def test_a_model_of_a_hub_is_pinned_to_the_revision_that_was_used() -> None:
    made = report()
    assert made.environment is not None
    spec = {**made.spec, "model": {"source": "hub", "name": "org/model", "revision": "main"}}
    pinned = made.environment.model_copy(update={"model_revision": "abc123"})
    text = card.rebuilding_spec(made.model_copy(update={"spec": spec, "environment": pinned}))
    assert "revision: abc123" in text


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>",
        "[click](javascript:alert(1))",
        "# heading\n## another",
        "a | b | c",
        "`code` ```fence```",
        "![x](https://evil.example/x.png)",
        "https://evil.example @team www.evil.example",
        "1. list",
        "2) list",
        "- list",
    ],
)
def test_a_users_text_shows_as_it_was_written(name: str) -> None:
    first = card.readme(report(name)).splitlines()[0]
    assert first.startswith("# ")
    rest = first[2:]
    assert "\n" not in rest
    for mark in ("<", "[", "|", "`", "://", "www.", "#"):
        at = 0
        while (at := rest.find(mark, at)) >= 0:
            assert rest[at - 1] == "\\", (mark, rest)
            at += len(mark)


def test_settings_with_backticks_stay_code() -> None:
    made = report()
    spec = {**made.spec, "variant": {**made.spec["variant"]}}
    spec["variant"]["recipe"] = [{"technique": "int8-dynamic", "keep": ["a`b``c<d>"]}]
    assert "keep = ```[a`b``c<d>]```" in card.readme(made.model_copy(update={"spec": spec}))


@pytest.mark.parametrize(
    ("form", "files", "task", "said"),
    [
        (
            "torch",
            {"model.safetensors": 1},
            "text-classification",
            "AutoModelForSequenceClassification.from_pretrained",
        ),
        ("torch", {"model.safetensors": 1, "load.py": 1}, "text-generation", "from load import load"),
        ("torch", {"adapter/adapter_config.json": 1}, "text-generation", "PeftModel.from_pretrained(base, 'adapter')"),
        (
            "torch",
            {"adapter/a/adapter_config.json": 1, "adapter/b/adapter_config.json": 1},
            "text-generation",
            "model.load_adapter('adapter/b', adapter_name='b')",
        ),
        ("onnx", {"model.onnx": 1}, "text-classification", "onnxruntime.InferenceSession"),
        ("onnx", {"model.onnx": 1}, "image-classification", 'wanted["pixel_values"]'),
        ("torch", {"model.safetensors": 1}, "image-classification", "AutoModelForImageClassification"),
    ],
)
def test_each_form_says_how_it_is_opened(form: str, files: dict[str, int], task: str, said: str) -> None:
    artifact = ArtifactRecord(
        sha256="ab" * 32, form=form, label=Label.PACKED, bytes=1, files=files, parameters=1, dtype="int8"
    )
    text = card.readme(report(artifact=artifact, task=task))
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None and said in block[1]
    compile(block[1], "card", "exec")


@pytest.mark.parametrize(("name", "folder"), [("a/b", "a-b"), ("../..", "-.."), ("..", "artifact"), ("x y", "x-y")])
def test_a_folder_is_named_after_the_experiment_and_stays_inside(name: str, folder: str) -> None:
    assert card.folder_name(name) == folder


def test_the_card_of_a_library_gives_way(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlibrary_name: peft\n---\n")
    card.write_card(tmp_path, report())
    assert (tmp_path / "README.md").read_text().startswith("# int8")
    assert parse((tmp_path / "spec.yaml").read_text()).baseline == "fp32"
