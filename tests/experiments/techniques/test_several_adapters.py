"""Several adapters on one base: little more memory than one model, and the answers that each gives alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.metrics.adapters import AdapterFidelity, AdapterLatency, AdapterMemory
from experiments.parts.adapter_readings import adapter_readings
from experiments.parts.tied_weights import unique_bytes
from experiments.protocols import AdapterSession, Host
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.lora import Lora
from tests.experiments.building import bert, context, inputs_for
from tests.experiments.metrics.observed import observations
from tests.experiments.techniques.training import training

STEP = Lora(rank=2, steps=6, learning_rate=3e-2, batch_size=8, merge=False, adapters=3)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("adapters")
    module, _ = STEP.apply_torch(bert(), training(work, "text-classification"))
    TorchEager().save(module, work / "artifact", context(work, "text-classification"), ())
    return work / "artifact"


@pytest.fixture(scope="module")
def readings(artifact: Path) -> dict[str, Any]:
    session = TorchEager().open(artifact, "cpu", 1)
    assert isinstance(session, AdapterSession)
    assert session.adapters() == ("adapter-1", "adapter-2", "adapter-3")
    inputs = inputs_for("text-classification")
    four = {name: np.concatenate([array, array]) for name, array in inputs.items()}
    return adapter_readings(session, artifact, four, four, "text-classification", "cpu")


def test_three_adapters_and_their_base_need_little_more_than_one_model(readings: dict[str, Any]) -> None:
    one = unique_bytes(bert())
    assert readings["merged_bytes"] == [one] * 3
    assert one < readings["bytes"] < 1.2 * one


def test_each_adapter_answers_beside_the_others_as_it_does_alone(readings: dict[str, Any]) -> None:
    assert readings["difference"] <= 1e-5
    assert readings["merged_difference"] <= 1e-4


def test_the_adapters_differ_and_a_mixed_batch_asks_each_for_its_rows(artifact: Path) -> None:
    session: Any = TorchEager().open(artifact, "cpu", 1)
    inputs = inputs_for("text-classification")
    own = []
    for name in session.adapters():
        session.use_adapter(name)
        own.append(session.forward(inputs))
    assert np.abs(own[0] - own[1]).max() > 1e-4 and np.abs(own[1] - own[2]).max() > 1e-4
    mixed = session.forward_mixed(inputs, ["adapter-3", "adapter-1"])
    assert np.abs(mixed - np.stack([own[2][0], own[0][1]])).max() <= 1e-5


def test_an_adapter_that_answers_otherwise_beside_others_is_a_failure(artifact: Path) -> None:
    session: Any = TorchEager().open(artifact, "cpu", 1)
    with torch.no_grad():
        for name, parameter in session._module.named_parameters():
            if ".lora_B.adapter-2." in name:
                parameter.mul_(3)
    inputs = inputs_for("text-classification")
    with pytest.raises(ExperimentError, match="adapter-2 answers otherwise beside other adapters than alone") as caught:
        adapter_readings(session, artifact, inputs, inputs, "text-classification", "cpu")
    assert caught.value.failure.kind is FailureKind.CANARY


def test_the_numbers_are_told_with_samples_and_intervals(readings: dict[str, Any]) -> None:
    seen = observations(adapters=readings)
    told = {m.metric: m for kind in (AdapterMemory, AdapterLatency, AdapterFidelity) for m in kind().measure(seen)}
    ratio = told["adapters_memory_ratio"].value
    assert ratio is not None and 1 < ratio < 1.2 and told["adapters_memory_ratio"].at == {"adapters": 3}
    assert len(told["adapter_switch_ms"].samples or ()) == 30
    mixed = told["adapters_mixed_latency_ms"]
    assert mixed.at == {"adapters": 3, "batch_size": 4} and len(mixed.samples or ()) == 24
    assert told["adapters_mixed_slowdown"].interval is not None
    assert told["adapters_max_difference"].value == readings["difference"]


def test_an_artifact_without_several_adapters_says_so() -> None:
    (missing,) = AdapterFidelity().measure(observations())
    assert missing.reason == "the artifact does not hold several adapters"


@pytest.mark.slow
def test_a_study_measures_them_in_fresh_processes(tmp_path: Path) -> None:
    from experiments.pipeline import run_study
    from tests.experiments.test_pipeline import WORDS, by_name, classifier_study

    data = tmp_path / "reviews"
    data.mkdir()
    for split, rest in (("train", "film"), ("test", "plot")):
        rows = [f"{WORDS[i % 8]} {WORDS[i // 8]} {rest},{'pos' if i % 2 else 'neg'}" for i in range(40)]
        (data / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    experiments: list[object] = [
        {"name": "three", "recipe": [STEP.model_dump(mode="json")]},
        {"name": "tuned", "recipe": [{"technique": "finetune", "steps": 3, "batch_size": 8}], "runtime": "onnxruntime"},
        {"name": "student", "recipe": [{"technique": "distill", "layers": 1, "steps": 3, "batch_size": 8}]},
    ]
    dataset = {"source": "path", "path": str(data), "split": "test", "train_split": "train"}
    study = run_study(
        classifier_study(tmp_path, experiments, dataset=dataset), Host(cache=tmp_path / "c", offline=True)
    )
    reports = by_name(study)
    assert {name: report.failure for name, report in reports.items()} == dict.fromkeys(reports)
    three = reports["three"]
    ratio, difference = (three.find(name) for name in ("adapters_memory_ratio", "adapters_max_difference"))
    assert ratio is not None and ratio.value is not None and ratio.value < 1.2
    assert difference is not None and difference.value is not None and difference.value <= 1e-5
    for report in (three, reports["tuned"], reports["student"]):
        assert report.canary is not None and report.canary.passed
        assert report.canary.round_trip_difference is not None and report.canary.round_trip_difference <= 1e-5
        assert report.effects[0].losses
