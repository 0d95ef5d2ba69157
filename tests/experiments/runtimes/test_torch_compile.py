"""Runtime torch-compile: what was compiled is told apart, and never is an eager number called compiled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.parts.torch_session import TorchSession
from experiments.protocols import Ask
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_compile import TorchCompile
from experiments.techniques.fp16 import Fp16
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments.building import bert, context

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler (g++), and there is none here"
)


class Branching:
    """A model of one layer whose answer depends on its data: Python has to look, so the graph breaks there."""

    @staticmethod
    def make() -> Any:
        import torch
        from transformers import PretrainedConfig
        from transformers.modeling_outputs import SequenceClassifierOutput

        class Model(torch.nn.Module):
            config = PretrainedConfig()
            dtype = torch.float32

            def __init__(self) -> None:
                super().__init__()
                self.table = torch.nn.Embedding(200, 8)
                self.head = torch.nn.Linear(8, 2)

            def forward(self, input_ids: Any) -> Any:
                width = self.table(input_ids).mean(dim=1)
                if width.sum() > 0:
                    width = width + 1
                return SequenceClassifierOutput(logits=self.head(width))

        torch.manual_seed(0)
        return Model().eval()


def compiled(module: Any, **settings: Any) -> Any:
    from experiments.parts.compiled_session import CompiledSession

    # Graphs are traced, cut and counted alike whatever makes the kernels; the quickest is to make none.
    choices = {"mode": "default", "dynamic": None, "limit": 64, "backend": "eager", **settings}
    return CompiledSession(module, "text-classification", "cpu", 0, **choices)


def request(length: int) -> dict[str, Any]:
    return {"input_ids": np.random.default_rng(length).integers(0, 200, (1, length))}


def test_lengths_met_before_are_never_compiled_again_and_breaks_are_counted() -> None:
    """FC-091: 20 lengths once each, then again, through a data-dependent branch."""
    module = Branching.make()
    session, eager = compiled(module), TorchSession(module, "text-classification", "cpu", 0)
    for length in range(8, 28):
        assert np.abs(session.forward(request(length)) - eager.forward(request(length))).max() < 1e-6
    first = session.compilation()
    assert first["compile_s"] > 0
    assert first["graph_breaks"] >= 1
    assert 1 <= first["recompiles"] < 20
    for length in range(8, 28):
        session.forward(request(length))
    assert session.compilation() == first


def test_giving_up_on_compiling_is_a_failure_and_never_an_eager_result() -> None:
    session = compiled(Branching.make(), dynamic=False, limit=2)
    for length in (8, 9):
        session.forward(request(length))
    with pytest.raises(ExperimentError, match="gave up compiling") as caught:
        session.forward(request(10))
    assert caught.value.failure.kind is FailureKind.FALLBACK
    assert caught.value.failure.field == "runtime.recompile_limit"


@needs_compiler
def test_a_compiled_encoder_answers_like_the_eager_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    runtime, module = TorchCompile(dynamic="true"), bert()
    module.bert.encoder.layer = module.bert.encoder.layer[:1]  # compiling is what takes the time of this test
    module.config.num_hidden_layers = 1
    (tmp_path / "model").mkdir()
    runtime.save(module, tmp_path / "model", context(tmp_path / "build", "text-classification"), ())
    session = runtime.open(tmp_path / "model", "cpu", 2)
    inputs = {**request(12), "attention_mask": np.ones((1, 12), np.int64)}
    eager = TorchSession(module, "text-classification", "cpu", 0)
    assert np.abs(session.forward(inputs) - eager.forward(inputs)).max() < 1e-5
    assert session.proof()["compiler"] == "inductor"
    assert session.compilation()["graph_breaks"] == 0
    assert session.first_non_finite(inputs) is None
    assert eager.compilation() == {}


def test_without_a_compiler_it_is_refused_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Ask(task="text-classification", device="cpu", runtime=TorchCompile())
    monkeypatch.setenv("PATH", "")
    assert "C++ compiler" in str(TorchCompile().refuse(ask))


def test_integer_layers_are_refused_by_name_and_casts_are_not() -> None:
    runtime = TorchCompile()
    asks = {
        step.technique: Ask(task="text-classification", device="cpu", runtime=runtime, recipe=(step,))
        for step in (Int8Dynamic(), Fp16())
    }
    assert "int8-dynamic are opaque to torch.compile" in str(runtime.refuse(asks["int8-dynamic"]))
    if shutil.which("g++"):
        assert runtime.refuse(asks["fp16"]) is None
    assert OnnxRuntime().refuse(asks["int8-dynamic"]) is None
