"""FP16 and dynamic INT8 on ONNX graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from experiments.parts.onnx_graph import check_graph, load_graph, save_graph, weights_bytes
from experiments.parts.onnx_probe import open_quietly
from experiments.parts.onnx_steps import apply_onnx_steps
from experiments.protocols import Task, Technique
from experiments.records import ExperimentError, FailureKind, Label
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.techniques.fp16 import Fp16
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments.building import bert, context, cosine, gpt2, inputs_for, llama, outputs_of, vit
from tests.experiments.onnx_files import loop_with_product, matrix, product, write

HUNDREDS = {"x": np.full((1, 4), 100, np.float32)}


@pytest.mark.parametrize(
    ("make", "task", "linear", "kept"),
    [
        (llama, "text-generation", 14, ["lm_head"]),
        (gpt2, "text-generation", 8, ["lm_head"]),
        (bert, "text-classification", 14, []),
        (vit, "image-classification", 13, []),
    ],
)
def test_real_exports_are_converted_and_answer_like_their_source(
    make: Any, task: Task, linear: int, kept: list[str], tmp_path: Path
) -> None:
    module = make()
    inputs = inputs_for(task)
    expected = outputs_of(module, task, inputs)
    exported = tmp_path / "exported"
    exported.mkdir()
    OnnxRuntime().save(module, exported, context(tmp_path, task), ())
    whole = weights_bytes(exported / "model.onnx")
    for step in (Fp16(), Int8Dynamic()):
        folder = tmp_path / step.technique
        folder.mkdir()
        for file in exported.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        ready = context(tmp_path / f"{step.technique}-build", task)
        (effect,) = apply_onnx_steps(folder, [step], ready)
        OnnxRuntime().finish(folder, ready)
        session = OnnxRuntime().open(folder, "cpu", 2)
        assert cosine(expected, session.forward(inputs)) > 0.999
        assert session.first_non_finite(inputs) is None
        if step.technique == "fp16":
            assert effect.changed == effect.of
            assert weights_bytes(folder / "model.onnx") == pytest.approx(whole / 2, rel=0.05)
            assert np.abs(expected - session.forward(inputs)).max() < 2e-3
        else:
            assert effect.changed == linear
            assert list(effect.kept) == kept
            assert effect.summary.startswith(f"{linear} of {linear + len(kept)} linear layers quantized")
            assert weights_bytes(folder / "model.onnx") < whole


def test_casts_in_the_graph_become_half_casts_and_the_result_loads(tmp_path: Path) -> None:
    """FC-077 A."""
    nodes = [
        product("first", "x", "W", "a"),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT, name="cast"),
        product("second", "b", "W", "y"),
    ]
    source = write(tmp_path / "source.onnx", nodes, [matrix("W", np.eye(4))])
    (tmp_path / "out").mkdir()
    ready = context(tmp_path, "feature-extraction", probe=HUNDREDS)
    effect = Fp16().apply_onnx(source, tmp_path / "out" / "model.onnx", ready)
    assert (effect.changed, effect.of) == (1, 1)
    (y,) = open_quietly(tmp_path / "out" / "model.onnx", 1).run(None, HUNDREDS)
    assert y.dtype == np.float32
    assert (y == 100).all()


def test_a_product_that_overflows_in_fp16_is_named_although_the_cpu_would_hide_it(tmp_path: Path) -> None:
    """FC-077 B: 4 x 1000 x 100 = 400,000 > 65,504; ONNX Runtime's CPU provider computes it in float32."""
    source = write(tmp_path / "source.onnx", [product("linear", "x", "W", "y")], [matrix("W", np.full((4, 4), 1000))])
    with pytest.raises(ExperimentError, match=r"non-finite output in fp16 at node linear .*400000") as caught:
        Fp16().apply_onnx(source, tmp_path / "model.onnx", context(tmp_path, "feature-extraction", probe=HUNDREDS))
    assert caught.value.failure.kind is FailureKind.CANARY
    assert not (tmp_path / "model.onnx").exists()


def test_a_weight_that_overflows_is_named_instead_of_clamped(tmp_path: Path) -> None:
    source = write(tmp_path / "source.onnx", [product("linear", "x", "W", "y")], [matrix("W", np.eye(4) * 1e5)])
    with pytest.raises(ExperimentError, match=r"overflow in fp16 .*: W \(4 values\)"):
        Fp16().apply_onnx(source, tmp_path / "model.onnx", context(tmp_path, "feature-extraction", probe=HUNDREDS))


def test_squares_of_norms_stay_wide_so_large_activations_do_not_overflow(tmp_path: Path) -> None:
    module = llama()
    module.model.embed_tokens.weight.data *= 2e4  # squares of some 1e5
    inputs = inputs_for("text-generation")
    expected = outputs_of(module, "text-generation", inputs)
    folder = tmp_path / "model"
    folder.mkdir()
    ready = context(tmp_path, "text-generation", probe=inputs)
    OnnxRuntime().save(module, folder, ready, ())
    (effect,) = apply_onnx_steps(folder, [Fp16()], ready)
    OnnxRuntime().finish(folder, ready)
    assert any(name.startswith("norms (") for name in effect.kept)
    session = OnnxRuntime().open(folder, "cpu", 2)
    assert session.first_non_finite(inputs) is None
    assert cosine(expected, session.forward(inputs)) > 0.9999


def test_half_precision_without_kernels_is_labelled_as_what_it_is(tmp_path: Path) -> None:
    source = write(tmp_path / "source.onnx", [product("linear", "x", "W", "y")], [matrix("W", np.eye(4))])
    (tmp_path / "out").mkdir()
    ready = context(tmp_path, "feature-extraction", probe=HUNDREDS)
    effect = Fp16().apply_onnx(source, tmp_path / "out" / "model.onnx", ready)
    if "computed in float32" in effect.summary:
        assert effect.label is Label.WEIGHT_ONLY
    else:
        assert effect.label is None


@pytest.mark.parametrize("step", [Fp16(), Int8Dynamic()])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_weights_of_a_graph_are_named(step: Technique, value: float, tmp_path: Path) -> None:
    weight = np.eye(4)
    weight[1, 2] = value
    source = write(tmp_path / "source.onnx", [product("linear", "x", "W", "y")], [matrix("W", weight)])
    with pytest.raises(ExperimentError, match=r"non-finite weights: W \(1 value\)") as caught:
        step.apply_onnx(source, tmp_path / "model.onnx", context(tmp_path, "feature-extraction", probe=HUNDREDS))
    assert caught.value.failure.kind is FailureKind.BAD_MODEL


def test_an_initializer_defined_twice_is_refused(tmp_path: Path) -> None:
    """FC-069, file 1."""
    weights = [matrix("W", np.eye(4)), matrix("W", np.ones((4, 4)))]
    source = write(tmp_path / "source.onnx", [product("linear", "x", "W", "y")], weights)
    for refuse in (
        lambda: check_graph(source),
        lambda: Int8Dynamic().apply_onnx(source, tmp_path / "m.onnx", context(tmp_path, "feature-extraction")),
    ):
        with pytest.raises(ExperimentError, match="defines the initializer 'W' twice") as caught:
            refuse()
        assert caught.value.failure.kind is FailureKind.BAD_MODEL


def test_products_inside_a_loop_are_not_called_int8(tmp_path: Path) -> None:
    """FC-069, file 2."""
    source = loop_with_product(tmp_path / "source.onnx")
    assert (open_quietly(source, 1).run(None, HUNDREDS)[0] == 100).all()
    with pytest.raises(ExperimentError, match=r"0 of 0 linear layers.*1 matrix products lie inside Loop") as caught:
        Int8Dynamic().apply_onnx(source, tmp_path / "model.onnx", context(tmp_path, "feature-extraction"))
    assert caught.value.failure.kind is FailureKind.NO_EFFECT


def test_a_result_that_does_not_load_is_never_offered(tmp_path: Path) -> None:
    """FC-069: the last step loads and runs the graph, and only then writes the card."""
    folder = tmp_path / "model"
    folder.mkdir()
    ready = context(tmp_path, "text-classification")
    OnnxRuntime().save(bert(), folder, ready, ())
    model = load_graph(folder / "model.onnx")
    next(n for n in model.graph.node if n.op_type == "MatMul").op_type = "NoSuchOperator"
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(ExperimentError) as caught:
        OnnxRuntime().finish(folder, ready)
    assert caught.value.failure.kind is FailureKind.BAD_MODEL
    assert not (folder / "artifact.json").exists()


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("reduce_range", [True, False])
def test_extreme_products_agree_with_float_on_this_cpu(per_channel: bool, reduce_range: bool, tmp_path: Path) -> None:
    """FC-019: K = 64, all weights at the top, all activations at the top."""
    from experiments.hardware.cpu import isa
    from experiments.parts.int8_range import has_exact_dot

    if not reduce_range and not has_exact_dot(isa()):
        pytest.skip("this CPU has no exact 8-bit dot product: it needs reduce_range, which 'auto' sets")
    weight = np.full((64, 64), 127.0)
    source = write(tmp_path / "source.onnx", [product("linear", "x", "W", "y")], [matrix("W", weight)], width=64)
    (tmp_path / "out").mkdir()
    step = Int8Dynamic(per_channel=per_channel, reduce_range=reduce_range)
    effect = step.apply_onnx(source, tmp_path / "out" / "model.onnx", context(tmp_path, "feature-extraction"))
    assert f"reduce_range={'on' if reduce_range else 'off'} as asked" in effect.summary
    (y,) = open_quietly(tmp_path / "out" / "model.onnx", 2).run(None, {"x": np.ones((2, 64), np.float32)})
    assert np.allclose(y, 64 * 127, rtol=0.01)


def test_layers_are_kept_by_the_names_of_their_modules(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    ready = context(tmp_path, "text-generation")
    OnnxRuntime().save(llama(), folder, ready, ())
    (effect,) = apply_onnx_steps(folder, [Int8Dynamic(keep=("down_proj",))], ready)
    assert (effect.changed, effect.of) == (12, 15)
    assert effect.kept["model.layers.0.mlp.down_proj"] == "asked for by keep: 'down_proj'"


@pytest.mark.parametrize(("make", "task"), [(bert, "text-classification"), (llama, "text-generation")])
def test_embedding_tables_of_a_graph_are_stored_as_int8_where_asked(make: Any, task: Task, tmp_path: Path) -> None:
    module = make()
    inputs = inputs_for(task)
    expected = outputs_of(module, task, inputs)
    folder = tmp_path / "model"
    folder.mkdir()
    ready = context(tmp_path, task)
    OnnxRuntime().save(module, folder, ready, ())
    (effect,) = apply_onnx_steps(folder, [Int8Dynamic(embeddings=True)], ready)
    OnnxRuntime().finish(folder, ready)
    assert cosine(expected, OnnxRuntime().open(folder, "cpu", 2).forward(inputs)) > 0.999
    wide = {t.name for t in load_graph(folder / "model.onnx").graph.initializer if t.data_type == TensorProto.FLOAT}
    if task == "text-generation":
        assert "kept float, tie intact, counted once" in effect.kept["model.embed_tokens"]
        assert "0 of 1 embedding tables" in effect.summary
    else:
        assert "3 of 3 embedding tables stored as int8" in effect.summary
        assert not any(name.endswith("embeddings.weight") for name in wide)


def test_weights_over_the_limit_go_to_external_data_that_follows_the_graph(tmp_path: Path) -> None:
    source = write(tmp_path / "a.onnx", [product("linear", "x", "W", "y")], [matrix("W", np.eye(64))], width=64)
    (tmp_path / "large").mkdir()
    target = tmp_path / "large" / "model.onnx"
    save_graph(load_graph(source), target, limit=1000)
    assert (tmp_path / "large" / "model.onnx_data").stat().st_size == 64 * 64 * 4
    assert target.stat().st_size < 1000
    assert weights_bytes(target) == weights_bytes(source) == 64 * 64 * 4
    check_graph(target)
    target.rename(tmp_path / "large" / "renamed.onnx")
    (y,) = open_quietly(tmp_path / "large" / "renamed.onnx", 1).run(None, {"x": np.ones((1, 64), np.float32)})
    assert (y == 1).all()
