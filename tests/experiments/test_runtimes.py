"""Sessions of torch-eager and onnxruntime: what they answer, where they run, what they never do."""

from __future__ import annotations

import hashlib
import os
import select
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.parts.decoding import position_ids
from experiments.protocols import Runtime, Session, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments.building import bert, context, gpt2, in_fresh_process, inputs_for, llama, outputs_of, vit

RUNTIMES = (TorchEager(), OnnxRuntime())


def saved(runtime: Runtime, module: Any, folder: Path, task: Task) -> Path:
    """The artifact of ``module`` for ``runtime``."""
    folder.mkdir(exist_ok=True)
    ready = context(folder.parent / f"{folder.name}-build", task)
    runtime.save(module, folder, ready, ())
    runtime.finish(folder, ready)
    return folder


def opened(runtime: Runtime, module: Any, folder: Path, task: Task) -> Session:
    """A session on the CPU with two threads."""
    return runtime.open(saved(runtime, module, folder, task), "cpu", 2)


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.kind)
@pytest.mark.parametrize("make", [llama, gpt2])
def test_greedy_tokens_are_those_of_transformers_and_every_one_is_timed(
    runtime: Runtime, make: Any, tmp_path: Path
) -> None:
    import torch

    module = make()
    prompts = inputs_for("text-generation")["input_ids"]
    session = opened(runtime, module, tmp_path / "model", "text-generation")
    generated = session.generate(prompts, 8)
    reference = module.generate(
        torch.from_numpy(prompts), max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0
    )
    assert generated.tokens.tolist() == reference[:, 12:].tolist()
    assert len(generated.times_ns) == 8
    assert generated.started_ns < generated.times_ns[0]
    assert list(generated.times_ns) == sorted(generated.times_ns)


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.kind)
def test_the_end_of_text_token_does_not_end_the_timing(runtime: Runtime, tmp_path: Path) -> None:
    module = llama()
    prompts = inputs_for("text-generation")["input_ids"]
    first = opened(runtime, module, tmp_path / "a", "text-generation").generate(prompts, 1).tokens
    module.config.eos_token_id = module.generation_config.eos_token_id = int(first[0, 0])
    again = opened(runtime, module, tmp_path / "b", "text-generation").generate(prompts, 6)
    assert again.tokens.shape == (2, 6)
    assert again.tokens[0, 0] == first[0, 0]


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.kind)
@pytest.mark.parametrize(("make", "task"), [(llama, "text-generation"), (bert, "text-classification")])
def test_padding_on_either_side_changes_no_real_answer(runtime: Runtime, make: Any, task: Task, tmp_path: Path) -> None:
    session = opened(runtime, make(), tmp_path / "model", task)
    ids = inputs_for(task)["input_ids"][:1]
    alone = session.forward({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    sides = ("left", "right") if task == "text-generation" else ("right",)
    for side in sides:
        widths = ((0, 0), (5, 0) if side == "left" else (0, 5))
        mask = np.pad(np.ones_like(ids), widths)
        padded = session.forward({"input_ids": np.pad(ids, widths), "attention_mask": mask})
        real = padded[:, mask[0] > 0] if task == "text-generation" else padded
        assert np.abs(real - alone).max() < 1e-5


def test_positions_count_real_tokens_only() -> None:
    mask = np.array([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 0]]


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.kind)
def test_images_go_in_and_logits_come_out_as_float32(runtime: Runtime, tmp_path: Path) -> None:
    module, inputs = vit(), inputs_for("image-classification")
    output = opened(runtime, module, tmp_path / "model", "image-classification").forward(inputs)
    assert output.dtype == np.float32
    assert output.shape == (2, 10)
    assert np.abs(output - outputs_of(module, "image-classification", inputs)).max() < 1e-5


@pytest.mark.parametrize("quantized", [False, True])
def test_an_encoder_without_its_pooler_gets_no_random_one(quantized: bool, tmp_path: Path) -> None:
    module = bert().bert
    module.pooler = None
    if quantized:
        Int8Dynamic().apply_torch(module, context(tmp_path, "feature-extraction"))
    inputs = inputs_for("feature-extraction")
    output = opened(TorchEager(), module, tmp_path / "model", "feature-extraction").forward(inputs)
    assert np.abs(output - outputs_of(module, "feature-extraction", inputs)).max() == 0


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.kind)
def test_prompts_that_cannot_be_continued_are_refused(runtime: Runtime, tmp_path: Path) -> None:
    decoder = opened(runtime, llama(), tmp_path / "a", "text-generation")
    for prompt, tokens, message in (
        (np.zeros((1, 0), np.int64), 4, "at least one token"),
        (np.ones((1, 4), np.int64), 0, "new_tokens must be at least 1"),
        (np.ones((1, 60), np.int64), 8, "need 68 positions, the model has 64"),
    ):
        with pytest.raises(ExperimentError, match=message):
            decoder.generate(prompt, tokens)
    with pytest.raises(ExperimentError, match="not generate text"):
        opened(runtime, bert(), tmp_path / "b", "text-classification").generate(np.ones((1, 4), np.int64), 4)


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.kind)
def test_asking_for_cuda_where_there_is_none_is_a_fallback_never_a_cpu_number(runtime: Runtime, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    folder = saved(runtime, bert(), tmp_path / "model", "text-classification")
    with pytest.raises(ExperimentError, match="asked for") as caught:
        runtime.open(folder, "cuda", 2)
    assert caught.value.failure.kind is FailureKind.FALLBACK


def test_the_provider_is_proven_by_the_nodes_it_was_given(tmp_path: Path) -> None:
    proof = opened(OnnxRuntime(), bert(), tmp_path / "model", "text-classification").proof()
    assert proof["providers"] == ["CPUExecutionProvider"]
    assert proof["nodes"]["CPUExecutionProvider"] > 50
    assert proof["threads"] == 2


def test_torch_proves_its_device_threads_and_formats(tmp_path: Path) -> None:
    module, _ = Int8Dynamic().apply_torch(bert(), context(tmp_path, "text-classification"))
    session = opened(TorchEager(), module, tmp_path / "model", "text-classification")
    proof = session.proof()
    assert proof["device"] == "cpu"
    assert set(proof["tensors"]) == {"cpu"}
    assert proof["packed_layers"] == 14
    assert proof["threads"] == 2
    assert session.memory() == {"torch_peak_allocated": None, "torch_peak_reserved": None}


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.kind)
def test_a_non_finite_answer_is_traced_to_its_layer(runtime: Runtime, tmp_path: Path) -> None:
    module, inputs = bert(), inputs_for("text-classification")
    session = opened(runtime, module, tmp_path / "a", "text-classification")
    assert session.first_non_finite(inputs) is None
    for layer in (module.bert.encoder.layer[1].intermediate.dense, module.bert.encoder.layer[1].output.dense):
        layer.weight.data.fill_(3e38)  # finite weights, infinite products
    folder = tmp_path / "b"
    folder.mkdir()
    ready = context(tmp_path / "b-build", "text-classification")
    runtime.save(module, folder, ready, ())
    if runtime.form == "onnx":
        with pytest.raises(ExperimentError, match=r"outputs are not finite.*layer\.1") as caught:
            runtime.finish(folder, ready)
        assert caught.value.failure.kind is FailureKind.CANARY
    else:
        assert "encoder.layer.1." in (runtime.open(folder, "cpu", 2).first_non_finite(inputs) or "")


def test_an_onnx_artifact_is_measured_without_torch_transformers_or_optimum(tmp_path: Path) -> None:
    saved(OnnxRuntime(), llama(), tmp_path / "decoder", "text-generation")
    saved(OnnxRuntime(), bert(), tmp_path / "encoder", "text-classification")
    program = """
        import sys
        from pathlib import Path

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("torch", "transformers", "optimum", "onnx"):
                    raise ImportError(f"{name} must not be imported here")

        sys.meta_path.insert(0, Blocked())
        import numpy as np
        from experiments.runtimes.onnxruntime import OnnxRuntime

        folder = Path(values["folder"])
        ids = np.ones((2, 8), np.int64)
        encoder = OnnxRuntime().open(folder / "encoder", "cpu", 2)
        decoder = OnnxRuntime().open(folder / "decoder", "cpu", 2)
        answer = [
            list(encoder.forward({"input_ids": ids}).shape),
            list(decoder.generate(ids, 3).tokens.shape),
            encoder.weights_bytes() > 0,
            encoder.proof()["device"],
        ]
    """
    assert in_fresh_process(program, folder=str(tmp_path)) == [[2, 2], [2, 3], True, "cpu"]


def test_a_fresh_process_gives_the_same_outputs_to_the_last_digit(tmp_path: Path) -> None:
    module, _ = Int8Dynamic().apply_torch(llama(), context(tmp_path, "text-generation"))
    saved(TorchEager(), module, tmp_path / "torch-eager", "text-generation")
    saved(OnnxRuntime(), llama(), tmp_path / "onnxruntime", "text-generation")
    inputs = inputs_for("text-generation")
    here = []
    for runtime in RUNTIMES:
        session = runtime.open(tmp_path / runtime.kind, "cpu", 2)
        here.append(hashlib.sha256(session.forward(inputs).tobytes()).hexdigest())
        here.append(session.generate(inputs["input_ids"], 8).tokens.tolist())
    program = """
        import hashlib
        from pathlib import Path
        from experiments.runtimes.onnxruntime import OnnxRuntime
        from experiments.runtimes.torch_eager import TorchEager
        from tests.experiments.building import inputs_for
        inputs = inputs_for("text-generation")
        answer = []
        for runtime in (TorchEager(), OnnxRuntime()):
            session = runtime.open(Path(values["folder"]) / runtime.kind, "cpu", 2)
            answer.append(hashlib.sha256(session.forward(inputs).tobytes()).hexdigest())
            answer.append(session.generate(inputs["input_ids"], 8).tokens.tolist())
    """
    assert in_fresh_process(program, folder=str(tmp_path)) == here


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.kind)
def test_an_idle_session_burns_no_cpu(runtime: Runtime, tmp_path: Path) -> None:
    """The idle partner of a pair is blocked on its pipe; its threads must not spin."""
    session = opened(runtime, bert(), tmp_path / "model", "text-classification")
    inputs = inputs_for("text-classification")
    for _ in range(5):
        session.forward(inputs)
    before, started = time.process_time(), time.monotonic()
    reader, writer = os.pipe()
    try:
        select.select([reader], [], [], 0.5)  # nobody writes: half a second of waiting, as between two blocks
    finally:
        os.close(reader)
        os.close(writer)
    assert time.process_time() - before < 0.2 * (time.monotonic() - started)


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda r: r.kind)
def test_a_folder_that_is_no_artifact_is_a_bad_model(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"no artifact\.json") as caught:
        runtime.open(tmp_path, "cpu", 2)
    assert caught.value.failure.kind is FailureKind.BAD_MODEL


def test_a_damaged_graph_is_a_bad_model(tmp_path: Path) -> None:
    folder = saved(OnnxRuntime(), bert(), tmp_path / "model", "text-classification")
    path = folder / "model.onnx"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ExperimentError, match="does not load") as caught:
        OnnxRuntime().open(folder, "cpu", 2)
    assert caught.value.failure.kind is FailureKind.BAD_MODEL


def test_runtimes_and_techniques_are_described_without_torch() -> None:
    program = """
        import sys
        from experiments.catalog import plugins
        for kind in ("technique", "runtime"):
            for plugin in plugins(kind).values():
                assert plugin.title and plugin.summary and plugin.origin
        answer = sorted({"torch", "transformers", "onnx", "onnxruntime", "optimum"} & set(sys.modules))
    """
    assert in_fresh_process(program) == []
