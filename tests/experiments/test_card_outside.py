"""The code on an artifact's card opens it where Steelyard is not installed, with the same predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments import card
from experiments.parts.companions import copy_companions
from experiments.parts.contents import artifact_record
from experiments.parts.loading import load_module
from experiments.protocols import Runtime, Technique
from experiments.records import Label, Report
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_eager import TorchEager
from experiments.spec import parse
from experiments.techniques.bf16 import Bf16
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments import outside
from tests.experiments.building import context
from tests.experiments.tiny_models import tiny_classifier

WORDS = ["good", "bad", "fine", "poor", "film", "plot", "great", "awful"]
TEXTS = ["good film", "awful plot poor", "fine"]


def built(tmp_path: Path, technique: Technique, runtime: Runtime) -> Path:
    """A folder as a build leaves it, with its card."""
    model = tiny_classifier(tmp_path / "model", WORDS, ("neg", "pos"))
    ready = context(tmp_path / "build", "text-classification", source=model)
    module = load_module(model, "text-classification")
    files, exported = tmp_path / "files", tmp_path / "exported"
    files.mkdir()
    if runtime.form == "torch":
        module, _ = technique.apply_torch(module, ready)
        runtime.save(module, files, ready, ())
    else:
        exported.mkdir()
        runtime.save(module, exported, ready, (technique,))
        technique.apply_onnx(exported / "model.onnx", files / "model.onnx", ready)
        for path in exported.iterdir():
            if path.suffix == ".json":
                path.rename(files / path.name)
    copy_companions(model, files)
    runtime.finish(files, ready)
    card.write_card(files, report(technique, runtime, files))
    return files


def report(technique: Technique, runtime: Runtime, files: Path) -> Report:
    spec: dict[str, Any] = {
        "name": "s",
        "model": {"source": "path", "path": "model"},
        "baseline": "fp32",
        "experiments": [
            {"name": "fp32"},
            {"name": "small", "recipe": [technique.model_dump()], "runtime": runtime.model_dump()},
        ],
    }
    return Report(
        experiment="small",
        baseline="fp32",
        task="text-classification",
        spec=parse(spec).expand()[1].canonical(),
        status="succeeded",
        artifact=artifact_record(files, runtime.form, Label.PACKED, 1),
    )


MADE: tuple[tuple[Technique, Runtime], ...] = (
    (Bf16(), TorchEager()),  # what transformers reads
    (Int8Dynamic(), TorchEager()),  # packed layers with their load.py
    (Int8Dynamic(), OnnxRuntime()),
)


def with_an_adapter(tmp_path: Path) -> Path:
    """A base model with a LoRA adapter beside it, whose every weight is random."""
    from peft import LoraConfig, get_peft_model

    from experiments.parts.adapters import hold

    model = tiny_classifier(tmp_path / "model", WORDS, ("neg", "pos"))
    settings = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    module = hold(get_peft_model(load_module(model, "text-classification"), settings))
    files = tmp_path / "files"
    files.mkdir()
    ready = context(tmp_path / "build", "text-classification", source=model)
    TorchEager().save(module.eval(), files, ready, ())
    copy_companions(model, files)
    TorchEager().finish(files, ready)
    card.write_card(files, report(Bf16(), TorchEager(), files))
    return files


def test_artifacts_give_the_same_predictions_where_steelyard_is_not_installed(tmp_path: Path) -> None:
    folders = [built(tmp_path / str(n), technique, runtime) for n, (technique, runtime) in enumerate(MADE)]
    folders.append(with_an_adapter(tmp_path / "adapter"))
    runtimes = [*(runtime for _, runtime in MADE), TorchEager()]
    for folder, runtime, found in zip(folders, runtimes, outside.answers(folders, TEXTS), strict=True):
        np.testing.assert_allclose(found, outside.own_answers(folder, runtime, TEXTS), rtol=1e-4, atol=1e-4)
