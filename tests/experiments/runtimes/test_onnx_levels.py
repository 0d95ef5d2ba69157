"""Settings of runtime onnxruntime: optimization levels and fusions change the nodes, never the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest

from experiments.protocols import Ask, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.onnxruntime import OnnxRuntime
from tests.experiments.building import bert, context, gpt2, inputs_for, llama, vit

Level = Literal["disabled", "basic", "extended", "all"]


def facts(module: Any, task: Task) -> ModelFacts:
    return ModelFacts(
        "tiny", module.config.model_type, (), task, 0, "float32", 0, hidden_size=32, heads=4, kv_heads=4, layers=2
    )


def exported(module: Any, folder: Path, task: Task) -> tuple[Path, Any]:
    folder.mkdir()
    ready = replace(context(folder.parent / "build", task), facts=facts(module, task))
    OnnxRuntime().save(module, folder, ready, ())
    OnnxRuntime().finish(folder, ready)
    return folder, ready


def test_each_level_leaves_no_more_nodes_than_the_one_below_and_the_same_answers(tmp_path: Path) -> None:
    folder, _ = exported(bert(), tmp_path / "model", "text-classification")
    inputs = inputs_for("text-classification")
    nodes, answers = [], []
    for level in get_args(Level):
        session = OnnxRuntime(optimization=level).open(folder, "cpu", 2)
        proof = session.proof()
        assert proof["optimization"] == level
        nodes.append(proof["nodes"]["CPUExecutionProvider"])
        answers.append(session.forward(inputs))
    assert nodes == sorted(nodes, reverse=True)
    assert nodes[-1] < nodes[0]
    assert all(np.abs(answer - answers[0]).max() < 1e-5 for answer in answers)


@pytest.mark.parametrize(
    ("make", "task"), [(bert, "text-classification"), (gpt2, "text-generation"), (vit, "image-classification")]
)
def test_fusions_are_named_and_change_no_answer(make: Callable[[], Any], task: Task, tmp_path: Path) -> None:
    folder, ready = exported(make(), tmp_path / "model", task)
    inputs = inputs_for(task)
    before = OnnxRuntime().open(folder, "cpu", 2).forward(inputs)
    (told,) = OnnxRuntime(fusions=True).finish(folder, ready)
    assert "4 SkipLayerNormalization" in told
    assert "nodes became" in told
    assert np.abs(OnnxRuntime(fusions=True).open(folder, "cpu", 2).forward(inputs) - before).max() < 1e-5


def test_a_graph_in_which_nothing_can_be_fused_is_no_effect(tmp_path: Path) -> None:
    folder, ready = exported(vit(), tmp_path / "model", "image-classification")
    OnnxRuntime(fusions=True).finish(folder, ready)
    again = replace(ready, work=tmp_path / "again")
    with pytest.raises(ExperimentError, match="none of ONNX Runtime's vit patterns") as caught:
        OnnxRuntime(fusions=True).finish(folder, again)
    assert caught.value.failure.kind is FailureKind.NO_EFFECT


def test_fusions_are_refused_by_name_where_there_are_none() -> None:
    module, runtime = llama(), OnnxRuntime(fusions=True)
    ask = Ask(task="text-generation", device="cpu", runtime=runtime, model=facts(module, "text-generation"))
    assert "fuses graphs of 'llama' while it loads them" in str(runtime.refuse(ask))
    assert OnnxRuntime().refuse(ask) is None
