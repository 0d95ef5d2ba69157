"""Runtime openvino: the same graph, the same answers; refused by name where the extra is not installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.protocols import Ask, Task
from experiments.records import ExperimentError
from experiments.runtimes import openvino as runtime_file
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.openvino import OpenVino
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments.building import bert, context, cosine, inputs_for, llama, vit

needs_openvino = pytest.mark.skipif(
    find_spec("openvino") is None, reason="OpenVINO is an optional extra and not installed: pip install '.[openvino]'"
)


def saved(module: Any, folder: Path, task: Task) -> Path:
    folder.mkdir()
    ready = context(folder.parent / "build", task)
    OpenVino().save(module, folder, ready, ())
    OpenVino().finish(folder, ready)
    return folder


@needs_openvino
@pytest.mark.parametrize(
    ("make", "task"), [(bert, "text-classification"), (llama, "text-generation"), (vit, "image-classification")]
)
def test_openvino_answers_what_onnx_runtime_answers(make: Callable[[], Any], task: Task, tmp_path: Path) -> None:
    folder = saved(make(), tmp_path / "model", task)
    session, other = OpenVino().open(folder, "cpu", 2), OnnxRuntime().open(folder, "cpu", 2)
    inputs = inputs_for(task)
    assert np.abs(session.forward(inputs) - other.forward(inputs)).max() < 1e-5
    assert session.weights_bytes() == other.weights_bytes()
    assert session.first_non_finite(inputs) is None
    proof = session.proof()
    assert proof["execution_devices"] == ["CPU"]
    assert proof["threads"] == 2
    if task == "text-generation":
        generated = session.generate(inputs["input_ids"], 6)
        assert generated.tokens.tolist() == other.generate(inputs["input_ids"], 6).tokens.tolist()
        assert list(generated.times_ns) == sorted(generated.times_ns)


@needs_openvino
def test_an_integer_graph_of_onnx_runtime_runs_too(tmp_path: Path) -> None:
    folder = saved(bert(), tmp_path / "model", "text-classification")
    source = OnnxRuntime().open(folder, "cpu", 2).forward(inputs_for("text-classification"))
    (tmp_path / "int8").mkdir()
    context_ = context(tmp_path / "build", "text-classification")
    Int8Dynamic().apply_onnx(folder / "model.onnx", tmp_path / "int8" / "model.onnx", context_)
    (tmp_path / "int8" / "model.onnx").replace(folder / "model.onnx")
    # What OpenVINO has no operator for would be refused; these it has.
    answers = OpenVino().open(folder, "cpu", 2).forward(inputs_for("text-classification"))
    assert cosine(answers, source) > 0.99


@needs_openvino
def test_a_file_that_is_no_graph_is_refused_and_not_a_crash(tmp_path: Path) -> None:
    folder = saved(vit(), tmp_path / "model", "image-classification")
    (folder / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(ExperimentError, match="OpenVINO can't read this graph"):
        OpenVino().open(folder, "cpu", 1)


def test_without_the_extra_it_is_refused_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_file, "find_spec", lambda name: None)
    ask = Ask(task="text-classification", device="cpu", runtime=OpenVino())
    assert "pip install 'steelyard[openvino]'" in str(OpenVino().refuse(ask))
