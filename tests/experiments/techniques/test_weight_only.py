"""8- and 4-bit weight-only quantization, in torch modules and ONNX graphs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from experiments.parts.onnx_graph import weights_bytes
from experiments.parts.onnx_steps import apply_onnx_steps
from experiments.parts.tied_weights import parameter_count, unique_bytes
from experiments.parts.torch_files import load_module, save_module
from experiments.protocols import Ask, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.int4_weight_only import Int4WeightOnly
from experiments.techniques.int8_weight_only import Int8WeightOnly
from tests.experiments.building import bert, context, cosine, gpt2, in_fresh_process, inputs_for, llama, outputs_of, vit
from tests.experiments.calibrated import calibrated, same_token
from tests.experiments.parts.test_packed_layers import answers_outside

TEXT: Task = "text-generation"


def quantized_graph(module: Any, step: Any, work: Path, task: Task = TEXT, **changes: Any) -> tuple[Any, Any, Path]:
    """Session, effect and file of the exported module after one ONNX step."""
    folder = work / f"{step.technique}-{len(list(work.iterdir()))}"
    folder.mkdir()
    ready = calibrated(work, task, module=lambda: module, **changes)
    OnnxRuntime().save(module, folder, context(work, task), ())
    (effect,) = apply_onnx_steps(folder, [step], context(folder / "build", task, **_kept(ready)))
    OnnxRuntime().finish(folder, ready)
    return OnnxRuntime().open(folder, "cpu", 1), effect, folder / "model.onnx"


def _kept(ready: Any) -> dict[str, Any]:
    return {name: getattr(ready, name) for name in ("source", "facts", "rows", "module")}


@pytest.mark.parametrize(
    ("make", "task", "changed", "of"),
    [
        (lambda: llama(vocab_size=208), TEXT, 15, 15),
        (gpt2, TEXT, 8, 9),  # FC-013: Conv1D; its head of 200 rows fits no 4-bit kernel, and stays tied
        (lambda: bert(num_labels=16), "text-classification", 14, 14),
        (vit, "image-classification", 12, 13),
    ],
)
def test_torch_layers_are_swapped_counted_and_close(
    make: Any, task: Task, changed: int, of: int, tmp_path: Path
) -> None:
    inputs = inputs_for(task)
    wide = outputs_of(make(), task, inputs)
    module, effect = Int4WeightOnly().apply_torch(make(), context(tmp_path, task))
    assert (effect.changed, effect.of) == (changed, of)
    assert effect.summary.startswith(f"{changed} of {of} linear layers stored in 4 bits, one scale for 32 weights")
    assert cosine(wide, outputs_of(module, task, inputs)) > 0.98
    module, effect = Int8WeightOnly().apply_torch(make(), context(tmp_path, task))
    assert (effect.changed, effect.of) == (of, of)
    assert cosine(wide, outputs_of(module, task, inputs)) > 0.9995


def test_a_tied_model_with_packed_head_answers_the_same_in_a_fresh_process_and_outside(tmp_path: Path) -> None:
    """FC-015: embeddings included; the tie is either broken and counted, or both read the same codes."""
    inputs = inputs_for(TEXT)
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **inputs)
    wide = llama(vocab_size=1008)
    expected, sizes = {}, {}
    for name, step in (
        ("own", Int8WeightOnly()),
        ("shared", Int8WeightOnly(head="shared-codes")),
        ("float", Int8WeightOnly(head="float")),
        ("four", Int4WeightOnly(method="rtn")),
    ):
        module, effect = step.apply_torch(llama(vocab_size=1008), context(tmp_path, TEXT))
        expected[name], sizes[name] = outputs_of(module, TEXT, inputs), unique_bytes(module)
        assert effect.changed == (14 if name == "float" else 15)
        (tmp_path / name).mkdir()
        TorchEager().save(module, tmp_path / name, context(tmp_path, TEXT), ())
        assert parameter_count(module) == parameter_count(wide) + (1008 * 32 if name in ("own", "four") else 0)
    # Codes of its own, one byte a weight and a bfloat16 scale a row; shared ones save the float table.
    assert sizes["own"] - sizes["float"] == 1008 * (32 + 2)
    assert sizes["own"] - sizes["shared"] == 1008 * (4 * 32 - 4)
    answer = in_fresh_process(
        """
        from pathlib import Path
        import numpy as np
        from experiments.runtimes.torch_eager import TorchEager
        answer = {}
        folder = Path(values["folder"])
        for name in values["names"]:
            session = TorchEager().open(folder / name, "cpu", 1)
            np.save(folder / f"{name}.npy", session.forward(dict(np.load(folder / "inputs.npz"))))
            answer[name] = [session.proof()["packed_layers"], session.weights_bytes()]
        """,
        folder=str(tmp_path),
        names=list(sizes),
    )
    layers = {"own": 15, "shared": 16, "float": 14, "four": 15}
    assert answer == {name: [layers[name], sizes[name]] for name in sizes}
    for name, before in expected.items():
        assert np.abs(np.load(tmp_path / f"{name}.npy") - before).max() <= 1e-6, name
    assert np.abs(answers_outside(tmp_path / "four", inputs, tmp_path / "o") - expected["four"]).max() <= 1e-6


def test_shared_codes_are_saved_once(tmp_path: Path) -> None:
    module, _ = Int8WeightOnly(head="shared-codes").apply_torch(llama(), context(tmp_path, TEXT))
    (tmp_path / "a").mkdir()
    save_module(module, tmp_path / "a")
    again: Any = load_module(tmp_path / "a", "cpu")
    assert again.lm_head.codes.data_ptr() == again.model.embed_tokens.codes.data_ptr()
    assert (tmp_path / "a" / "model.safetensors").stat().st_size < unique_bytes(module) + 8_192


@pytest.mark.parametrize("method", ["rtn", "hqq", "gptq", "awq"])
def test_graphs_answer_like_the_float_graph_with_every_method(method: Any, tmp_path: Path) -> None:
    inputs = inputs_for(TEXT)
    module = llama()
    step = Int4WeightOnly(method=method, accuracy_level=0)
    session, effect, path = quantized_graph(module, step, tmp_path)
    assert (effect.changed, effect.of) == (15, 15)
    assert cosine(outputs_of(module, TEXT, inputs), session.forward(inputs)) > 0.98
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("MatMulNBits") == 15
    assert "Transpose" not in {n.op_type for n in onnx.load(path).graph.node if "lm_head" in n.name}


def test_a_quantized_graph_computes_exactly_its_codes(tmp_path: Path) -> None:
    """The same module with its weights replaced by what the codes stand for answers the same."""
    from experiments.parts.block_codes import Grid, round_to_nearest
    from experiments.parts.linear_layers import linear_layers

    inputs = inputs_for(TEXT)
    for symmetric in (True, False):
        module = llama(tie_word_embeddings=False)
        step = Int4WeightOnly(method="rtn", group_size=16, symmetric=symmetric, accuracy_level=0)
        session, _, _ = quantized_graph(module, step, tmp_path)
        with torch.no_grad():
            for layer in linear_layers(module)[0]:
                layer.module.weight.copy_(round_to_nearest(layer.weight, Grid(4, 16, symmetric)).wide())
        assert np.abs(outputs_of(module, TEXT, inputs) - session.forward(inputs)).max() < 1e-5


@pytest.mark.parametrize(("bits", "step"), [(4, Int4WeightOnly), (8, Int8WeightOnly)])
def test_a_tied_head_of_a_graph_shares_its_codes_with_the_embedding(bits: int, step: Any, tmp_path: Path) -> None:
    inputs = inputs_for(TEXT)
    module = llama()
    own, told, own_path = quantized_graph(module, step(accuracy_level=0), tmp_path)
    shared, effect, path = quantized_graph(module, step(accuracy_level=0, head="shared-codes"), tmp_path)
    left, _, left_path = quantized_graph(module, step(accuracy_level=0, head="float"), tmp_path)
    wide = outputs_of(module, TEXT, inputs)
    assert all(cosine(wide, session.forward(inputs)) > 0.98 for session in (own, shared, left))
    assert "lm_head and the embedding read the same codes" in effect.summary
    assert "codes of its own beside the float embedding" in told.summary
    if bits == 4:
        _, effect, _ = quantized_graph(module, step(method="gptq", head="shared-codes"), tmp_path)
        assert any("lm_head was rounded to nearest: the embedding reads the same" in line for line in effect.warnings)
    table = 200 * 32 * 4
    assert weights_bytes(own_path) - weights_bytes(path) == pytest.approx(table, abs=64)
    assert weights_bytes(left_path) - weights_bytes(path) == pytest.approx(table * (1 - bits / 32) - 800, abs=264)


def test_a_last_group_may_be_shorter_in_a_graph(tmp_path: Path) -> None:
    inputs = inputs_for("text-classification")
    module = bert(hidden_dropout_prob=0.0)
    step = Int4WeightOnly(method="rtn", group_size=128, accuracy_level=0)
    session, effect, _ = quantized_graph(module, step, tmp_path, "text-classification")
    assert (effect.changed, effect.of) == (14, 14)
    assert cosine(outputs_of(module, "text-classification", inputs), session.forward(inputs)) > 0.95


@pytest.mark.parametrize(("make", "task"), [(gpt2, TEXT), (vit, "image-classification")])
def test_conv1d_and_biased_layers_of_a_graph(make: Any, task: Task, tmp_path: Path) -> None:
    inputs = inputs_for(task)
    session, effect, _ = quantized_graph(make(), Int8WeightOnly(), tmp_path, TEXT if task == TEXT else task)
    assert effect.changed == effect.of
    assert cosine(outputs_of(make(), task, inputs), session.forward(inputs)) > 0.999


def test_awq_folds_its_factors_into_norms_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    """In float, the scaled model equals the source; only rounding differs."""
    inputs = inputs_for(TEXT)
    module, source = llama(vocab_size=208), llama(vocab_size=208)
    for layer in (*module.model.layers, *source.model.layers):
        torch.manual_seed(1)
        torch.nn.init.uniform_(layer.input_layernorm.weight, 0.2, 3.0)  # channels that matter more than others
    module, effect = Int4WeightOnly(method="awq").apply_torch(module, calibrated(tmp_path, TEXT))
    assert "in norms" in effect.summary
    gain = source.model.layers[0].input_layernorm.weight
    assert not torch.equal(gain, module.model.layers[0].input_layernorm.weight)
    assert cosine(outputs_of(source, TEXT, inputs), outputs_of(module, TEXT, inputs)) > 0.98
    session, effect, _ = quantized_graph(source, Int4WeightOnly(method="awq", accuracy_level=0), tmp_path)
    assert "in norms" in effect.summary
    assert cosine(outputs_of(source, TEXT, inputs), session.forward(inputs)) > 0.98


def test_awq_never_folds_into_a_norm_that_something_else_reads(tmp_path: Path) -> None:
    """BERT adds a norm's output to the residual: a factor in it would change the model."""
    task: Task = "text-classification"
    inputs = inputs_for(task)
    module, effect = Int4WeightOnly(method="awq", keep=("classifier",)).apply_torch(bert(), calibrated(tmp_path, task))
    assert "input factors: 0 in norms" in effect.summary
    assert cosine(outputs_of(bert(), task, inputs), outputs_of(module, task, inputs)) > 0.98


def test_gptq_with_two_equal_rows_and_a_dead_channel_stays_finite_and_says_what_it_did(tmp_path: Path) -> None:
    """FC-017."""
    module = llama(vocab_size=208)
    with torch.no_grad():
        module.model.embed_tokens.weight[:, 3] = 0
    inputs = inputs_for(TEXT)
    wide = outputs_of(module, TEXT, inputs)
    step = Int4WeightOnly(method="gptq", samples=2)
    module, effect = step.apply_torch(module, calibrated(tmp_path, TEXT, rows=same_token))
    assert "compensated by GPTQ (damping 0.01" in effect.summary
    assert "dead input channel" in effect.summary
    found = outputs_of(module, TEXT, inputs)
    assert np.isfinite(found).all()
    assert cosine(wide, found) > 0.9


def test_gptq_reaches_gpt2s_conv1d_projections(tmp_path: Path) -> None:
    """FC-013."""
    inputs = inputs_for(TEXT)
    module, effect = Int4WeightOnly(method="gptq").apply_torch(gpt2(), calibrated(tmp_path, TEXT))
    assert (effect.changed, effect.of) == (8, 9)
    assert cosine(outputs_of(gpt2(), TEXT, inputs), outputs_of(module, TEXT, inputs)) > 0.98


def test_weights_that_already_lie_on_a_four_bit_grid_are_told(tmp_path: Path) -> None:
    from experiments.parts.block_codes import Grid, round_to_nearest
    from experiments.parts.linear_layers import linear_layers

    module = llama(vocab_size=208)
    _, effect = Int4WeightOnly().apply_torch(llama(vocab_size=208), context(tmp_path, TEXT))
    assert effect.warnings == ()
    with torch.no_grad():
        for layer in linear_layers(module)[0]:
            layer.weight.copy_(round_to_nearest(layer.weight, Grid(4, 32, False)).wide())
    (told,) = Int4WeightOnly().apply_torch(copy.deepcopy(module), context(tmp_path, TEXT))[1].warnings
    assert "already lie on a 4-bit grid" in told
    _, effect, _ = quantized_graph(module, Int4WeightOnly(group_size=64), tmp_path)
    assert effect.warnings == (told,)
    assert Int8WeightOnly().apply_torch(module, context(tmp_path, TEXT))[1].warnings == ()


def test_bad_weights_and_empty_recipes_are_named(tmp_path: Path) -> None:
    for step in (Int8WeightOnly(keep=("*",)), Int4WeightOnly(keep=("*",))):
        with pytest.raises(ExperimentError, match="0 of 15 linear layers quantized") as caught:
            step.apply_torch(llama(), context(tmp_path, TEXT))
        assert caught.value.failure.kind is FailureKind.NO_EFFECT
        with pytest.raises(ExperimentError, match="0 of 15 linear layers quantized"):
            quantized_graph(llama(), step, tmp_path)
    broken = llama()
    with torch.no_grad():
        broken.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(ExperimentError, match=r"up_proj\.weight \(1 value\)"):
        Int8WeightOnly().apply_torch(broken, context(tmp_path, TEXT))


def test_layers_that_a_torch_kernel_would_read_beyond_stay_wide(tmp_path: Path) -> None:
    """The 8-bit kernel loads whole vectors: an input width of 40 would be read past its end."""
    module = torch.nn.Sequential(torch.nn.Linear(40, 32), torch.nn.Linear(32, 32))
    module, effect = Int8WeightOnly().apply_torch(module, context(tmp_path, "feature-extraction"))
    assert effect.kept == {"0": "its input width of 40 is no multiple of 32, which the kernel needs"}
    assert effect.changed == 1


def ask(step: Any, runtime: Any, device: Any = "cpu", **facts: Any) -> str | None:
    """What ``step`` answers for a model of width 576."""
    settings = {"hidden_size": 576, **facts}
    model = ModelFacts("smol", "llama", (), TEXT, 1, "float32", 4, **settings)
    refused: str | None = step.refuse(Ask(TEXT, device, runtime, (step,), model))
    return refused


def test_groups_that_do_not_divide_are_refused_where_the_kernel_needs_it_with_those_that_do() -> None:
    refused = ask(Int4WeightOnly(group_size=128), TorchEager())
    assert refused is not None
    assert "128 does not divide the model's width of 576; choose group_size 32, 64" in refused
    assert ask(Int4WeightOnly(group_size=128), OnnxRuntime()) is None
    assert ask(Int4WeightOnly(group_size=64), TorchEager()) is None
    assert "no group of 16" in str(ask(Int4WeightOnly(group_size=16), TorchEager()))
    facts = ModelFacts("smol", "llama", (), TEXT, 1, "float32", 4, hidden_size=576)
    assert Int4WeightOnly().valid(facts) == {"group_size": [16, 32, 64]}


def test_what_a_kernel_does_not_have_is_refused_by_name() -> None:
    assert "already quantized (awq)" in str(ask(Int4WeightOnly(), OnnxRuntime(), quantized="awq"))
    assert "leave group_size out" in str(ask(Int8WeightOnly(group_size=32), TorchEager()))
    assert "leave symmetric on" in str(ask(Int8WeightOnly(symmetric=False), TorchEager()))
    assert "MatMulNBits runs on cuda" in str(ask(Int8WeightOnly(), TorchEager(), "cuda"))
    assert ask(Int8WeightOnly(), OnnxRuntime(), "cuda") is None
    assert "no 4-bit lookup" in str(ask(Int4WeightOnly(head="shared-codes"), TorchEager()))
    assert Int4WeightOnly(method="gptq").needs() == {"calibration"}
    assert Int4WeightOnly().needs() == frozenset()
