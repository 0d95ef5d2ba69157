"""Export to ONNX: equal to the source, no network, honest about what can't be exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.parts.companions import copy_companions
from experiments.parts.export import export_onnx
from experiments.parts.onnx_graph import linear_nodes, load_graph, parameter_count, weights_bytes
from experiments.parts.onnx_support import EXPORTABLE, not_exportable
from experiments.parts.tied_weights import unique_tensors
from experiments.protocols import Ask, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.onnxruntime import OnnxRuntime
from tests.experiments.building import (
    bert,
    context,
    cosine,
    gpt2,
    in_fresh_process,
    inputs_for,
    llama,
    outputs_of,
    vit,
)


def exported(module: Any, folder: Path, task: Task) -> Any:
    """A session over the export of ``module``."""
    folder.mkdir(exist_ok=True)
    ready = context(folder.parent, task)
    OnnxRuntime().save(module, folder, ready, ())
    OnnxRuntime().finish(folder, ready)
    return OnnxRuntime().open(folder, "cpu", 2)


@pytest.mark.parametrize(
    ("make", "task"),
    [
        (llama, "text-generation"),
        (gpt2, "text-generation"),
        (bert, "text-classification"),
        (vit, "image-classification"),
    ],
)
def test_an_export_equals_its_source_and_holds_each_weight_once(make: Any, task: Task, tmp_path: Path) -> None:
    module = make()
    inputs = inputs_for(task)
    session = exported(module, tmp_path / "model", task)
    assert np.abs(session.forward(inputs) - outputs_of(module, task, inputs)).max() < 1e-5
    path = tmp_path / "model" / "model.onnx"
    parameters = sum(t.numel() for t in unique_tensors(module).values() if t.is_floating_point())
    assert parameter_count(path) == pytest.approx(parameters, rel=0.05)  # equal norms and biases are merged into one
    assert session.weights_bytes() == weights_bytes(path) == pytest.approx(4 * parameters, rel=0.06)


def test_hidden_states_are_exported_for_feature_extraction(tmp_path: Path) -> None:
    module = bert().bert
    inputs = inputs_for("feature-extraction")
    session = exported(module, tmp_path / "model", "feature-extraction")
    output = session.forward(inputs)
    assert output.shape == (2, 12, 32)
    assert cosine(output, outputs_of(module, "feature-extraction", inputs)) > 1 - 1e-6


def test_a_decoder_is_one_graph_whose_head_shares_the_embedding(tmp_path: Path) -> None:
    exported(llama(), tmp_path / "model", "text-generation")
    assert [p.name for p in (tmp_path / "model").glob("*.onnx*")] == ["model.onnx"]
    model = load_graph(tmp_path / "model" / "model.onnx")
    names = {value.name for value in model.graph.input}
    assert {"past_key_values.0.key", "past_key_values.1.value", "position_ids"} <= names
    assert linear_nodes(model)[1] == {"lm_head": "model.embed_tokens.weight"}


def test_an_untied_model_keeps_two_tensors(tmp_path: Path) -> None:
    exported(llama(tie_word_embeddings=False), tmp_path / "model", "text-generation")
    nodes, tied = linear_nodes(load_graph(tmp_path / "model" / "model.onnx"))
    assert len(nodes) == 15
    assert tied == {}


def test_a_config_that_claims_a_tie_over_two_tensors_is_refused(tmp_path: Path) -> None:
    """FC-021: the tensors decide, not the flag."""
    from experiments.runtimes.torch_eager import TorchEager

    for runtime in (OnnxRuntime(), TorchEager()):
        module = llama(tie_word_embeddings=False)
        module.config.tie_word_embeddings = True
        with pytest.raises(ExperimentError, match="embeddings differ, cannot share") as caught:
            runtime.save(module, tmp_path, context(tmp_path, "text-generation"), ())
        assert caught.value.failure.kind is FailureKind.BAD_MODEL


def test_exports_and_loads_open_no_connection(tmp_path: Path) -> None:
    """FC-079: a local folder whose config remembers a hub name, tokenizer files beside it, no network."""
    program = """
        import socket
        from pathlib import Path

        asked = []

        def refuse(self, address, *more):
            asked.append(str(address))
            raise OSError("no network in this test")

        socket.socket.connect = refuse
        socket.socket.connect_ex = refuse
        socket.getaddrinfo = lambda *a, **k: refuse(None, a[0])

        from experiments.runtimes.onnxruntime import OnnxRuntime
        from experiments.runtimes.torch_eager import TorchEager
        from tests.experiments.building import bert, context, inputs_for, llama

        for module, task in ((llama(), "text-generation"), (bert(), "text-classification")):
            module.config._name_or_path = module.name_or_path = "someone/some-model"
            for runtime in (OnnxRuntime(), TorchEager()):
                folder = Path(values["folder"]) / f"{task}-{runtime.kind}"
                folder.mkdir()
                ready = context(folder / "build", task)
                (ready.source / "tokenizer.json").write_text("{}")
                runtime.save(module, folder, ready, ())
                runtime.finish(folder, ready)
                runtime.open(folder, "cpu", 2).forward(inputs_for(task))
                assert (folder / "tokenizer.json").is_file()
        answer = asked
    """
    assert in_fresh_process(program, folder=str(tmp_path)) == []


def test_what_is_said_at_submission_agrees_with_the_installed_optimum() -> None:
    import optimum.exporters.onnx.model_configs  # noqa: F401 - registers the architectures
    from optimum.exporters.tasks import TasksManager

    for task, types in EXPORTABLE.items():
        name = "text-generation-with-past" if task == "text-generation" else task
        known = set(TasksManager.get_supported_model_type_for_task(name, "onnx"))
        assert types <= known, sorted(types - known)


def test_a_model_type_without_export_is_refused_before_it_is_queued() -> None:
    facts = ModelFacts("m", "mamba", ("MambaForCausalLM",), "text-generation", 1, "float32", 4)
    refused = OnnxRuntime().refuse(Ask(task="text-generation", device="cpu", runtime=OnnxRuntime(), model=facts))
    assert refused == not_exportable("text-generation", "mamba")
    assert refused is not None
    assert "choose runtime torch-eager" in refused


def test_an_architecture_without_export_is_unsupported_at_build(tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    module = MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(ExperimentError, match=r"'mamba' have no ONNX export for text-generation") as caught:
        export_onnx(module, tmp_path, "text-generation")
    assert caught.value.failure.kind is FailureKind.UNSUPPORTED


def test_companion_files_are_copied_by_name_and_weights_are_not(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    for folder in (source, target):
        folder.mkdir()
    for name in ("tokenizer.json", "vocab.txt", "model.safetensors", "notes.md"):
        (source / name).write_text("x")
    assert copy_companions(source, target) == ("tokenizer.json", "vocab.txt")
