"""Static INT8 of ONNX graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from experiments.parts.activation_histogram import Histogram
from experiments.parts.encoded_rows import EncodedRows
from experiments.parts.graph_statistics import collect, equal_batches
from experiments.parts.int8_static_onnx import StaticSettings, quantize_statically
from experiments.parts.integer_kernels import integer_products
from experiments.parts.linear_graph import open_linear_graph
from experiments.parts.onnx_graph import load_graph, weights_bytes
from experiments.parts.onnx_probe import open_quietly
from experiments.protocols import Ask, BuildContext, Examples, Task, no_rows
from experiments.records import ExperimentError, FailureKind, StepEffect
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.int8_static import Int8Static
from tests.experiments.building import context, cosine, gpt2, outputs_of, vit
from tests.experiments.calibrating import calibrating, exported
from tests.experiments.onnx_files import matrix, write
from tests.experiments.techniques.training import training

METHODS: tuple[Literal["minmax", "entropy", "percentile"], ...] = ("minmax", "entropy", "percentile")


@pytest.mark.parametrize(("task", "changed", "of"), [("text-classification", 14, 14), ("text-generation", 15, 15)])
def test_real_exports_answer_like_their_source_and_say_what_was_done(
    task: Task, changed: int, of: int, tmp_path: Path
) -> None:
    module, ready = calibrating(tmp_path, task)
    source, target = exported(module, ready, tmp_path)
    effect = Int8Static(rows=16).apply_onnx(source, target, ready)
    assert (effect.changed, effect.of) == (changed, of)
    assert integer_products(target, 1) == changed
    assert effect.summary.startswith(f"{changed} of {of} linear layers quantized")
    assert "without padding" in effect.summary
    assert "DequantizeLinear inserted; left float: " in effect.summary
    assert "reduce_range=off: this CPU has avx512_vnni" in effect.summary
    inputs = {"input_ids": np.array([[1, 9, 12, 30, 2], [1, 8, 8, 40, 2]]), "attention_mask": np.ones((2, 5), np.int64)}
    OnnxRuntime().finish(target.parent, ready)
    session = OnnxRuntime().open(target.parent, "cpu", 1)
    assert cosine(outputs_of(module, task, inputs), session.forward(inputs)) > 0.99
    assert weights_bytes(target) < weights_bytes(source)
    kinds = {node.op_type for node in load_graph(target).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds


def test_gpt2s_projections_are_quantized_in_a_graph_too(tmp_path: Path) -> None:
    """FC-013: Conv1D is exported as Gemm over (in, out) matrices; the tied head stays float."""
    _, ready = calibrating(tmp_path, "text-generation")
    module = gpt2()
    source, target = exported(module, ready, tmp_path)
    effect = Int8Static(rows=8).apply_onnx(source, target, ready)
    assert (effect.changed, effect.of, list(effect.kept)) == (8, 9, ["lm_head"])
    assert effect.warnings == ()
    assert integer_products(target, 1) == 8
    OnnxRuntime().finish(target.parent, ready)
    inputs = {"input_ids": np.array([[4, 9, 12, 30, 5]]), "attention_mask": np.ones((1, 5), np.int64)}
    answers = OnnxRuntime().open(target.parent, "cpu", 1).forward(inputs)
    assert cosine(outputs_of(module, "text-generation", inputs), answers) > 0.99


def test_images_calibrate_products_and_convolutions(tmp_path: Path) -> None:
    ready = training(tmp_path, "image-classification")
    source, target = exported(vit(), ready, tmp_path)
    effect = Int8Static(convolutions=True, rows=16).apply_onnx(source, target, ready)
    assert integer_products(target, 1) == 14
    assert effect.summary.startswith("14 of 14 linear layers and convolutions quantized")
    assert "on 16 calibration rows" in effect.summary


def test_one_pass_over_the_rows_serves_all_methods_and_every_keep(tmp_path: Path) -> None:
    asked: list[Any] = []

    def remember(kind: str, key: Any, make: Any) -> Path:
        folder = tmp_path / "kept"
        if not folder.exists():
            folder.mkdir()
            make(folder)
        asked.append((kind, key))
        return folder

    module, ready = calibrating(tmp_path, "text-classification", remember=remember)
    source, target = exported(module, ready, tmp_path)
    sizes = set()
    for method in METHODS:
        effect = Int8Static(method=method, keep=("classifier",) if method == "entropy" else ()).apply_onnx(
            source, target, ready
        )
        sizes.add(effect.changed)
        assert f"ranges by {method}" in effect.summary
    assert sizes == {14, 13}
    assert asked[0] == asked[1] == asked[2]


@pytest.mark.parametrize("method", METHODS)
def test_identical_rows_give_finite_scales_and_a_warning(
    method: Literal["minmax", "entropy", "percentile"], tmp_path: Path
) -> None:
    """FC-075: 8 identical rows, and one activation that never changes."""
    source = write(
        tmp_path / "model.onnx",
        [
            helper.make_node("MatMul", ["x", "W"], ["a"], name="/first/MatMul"),
            helper.make_node("Mul", ["a", "nothing"], ["zero"], name="/zero/Mul"),
            helper.make_node("MatMul", ["zero", "W"], ["y"], name="/second/MatMul"),
        ],
        [matrix("W", np.eye(4)), matrix("nothing", np.zeros(1))],
    )
    ready = context(tmp_path, "feature-extraction")
    target = tmp_path / "target" / "model.onnx"
    effect = _quantized(source, target, np.ones((8, 4), np.float32), ready, method=method)
    assert any(warning.startswith("calibration has no variety: all 8 rows are alike") for warning in effect.warnings)
    assert any("activations never change" in warning for warning in effect.warnings)
    model = load_graph(target)
    scales = [t for t in model.graph.initializer if t.name.endswith("_scale")]
    assert scales
    assert all((numpy_helper.to_array(t) > 0).all() and np.isfinite(numpy_helper.to_array(t)).all() for t in scales)
    (y,) = open_quietly(target, 1).run(None, {"x": np.ones((2, 4), np.float32)})
    assert np.isfinite(y).all()


def test_no_calibration_rows_is_an_error(tmp_path: Path) -> None:
    """FC-075: none at all, and a split without usable rows."""
    module, ready = calibrating(tmp_path, "text-classification")
    source, target = exported(module, ready, tmp_path)
    for rows in (no_rows, lambda use, limit=None: Examples("empty", "0")):
        with pytest.raises(ExperimentError) as caught:
            Int8Static().apply_onnx(source, target, replace(ready, rows=rows))
        assert caught.value.failure.kind is FailureKind.BAD_DATASET
    assert Int8Static().needs() == {"calibration"}


def test_padding_is_never_in_the_statistics() -> None:
    rows = EncodedRows(tokens=tuple((1,) * length for length in (3, 5, 3, 4, 5, 5)))
    batches = list(equal_batches(rows))
    assert sorted(row for batch in batches for row in batch) == list(range(6))
    for batch in batches:
        assert rows.batch(batch)["attention_mask"].all()


def test_a_small_conv_net_says_what_was_inserted_and_what_stayed_float(tmp_path: Path) -> None:
    """FC-093: 4 convolutions of 16 channels on 32x32."""
    rng = np.random.default_rng(0)
    kernels = [matrix(f"k{n}", rng.standard_normal((16, 16, 3, 3)) / 12) for n in range(4)]
    nodes = []
    for n in range(4):
        before = "x" if n == 0 else f"r{n - 1}"
        nodes.append(helper.make_node("Conv", [before, f"k{n}"], [f"c{n}"], name=f"/conv{n}/Conv", pads=[1] * 4))
        nodes.append(helper.make_node("Sigmoid", [f"c{n}"], ["y" if n == 3 else f"r{n}"], name=f"/act{n}/Sigmoid"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch_size", 16, 32, 32]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], kernels)
    source = tmp_path / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), source)
    ready = context(tmp_path, "feature-extraction")
    images = rng.standard_normal((4, 16, 32, 32)).astype(np.float32)
    with pytest.raises(ExperimentError, match="0 of 0 linear layers") as caught:
        _quantized(source, tmp_path / "nothing" / "model.onnx", images, ready)
    assert "set convolutions to true" in str(caught.value.failure.fix)
    target = tmp_path / "target" / "model.onnx"
    effect = _quantized(source, target, images, ready, convolutions=True)
    assert effect.summary.startswith("4 of 4 linear layers and convolutions quantized")
    assert "left float: 4 Sigmoid" in effect.summary
    assert "8 QuantizeLinear and 12 DequantizeLinear inserted" in effect.summary
    (wide,), (narrow,) = (open_quietly(path, 1).run(None, {"x": images}) for path in (source, target))
    assert cosine(wide, narrow) > 0.999


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("reduce_range", [True, False])
def test_extreme_products_agree_with_float_on_this_cpu(per_channel: bool, reduce_range: bool, tmp_path: Path) -> None:
    """FC-019: K = 64, all weights and all activations at the top; what saturates is told."""
    node = helper.make_node("MatMul", ["x", "W"], ["y"], name="/layer/MatMul")
    source = write(tmp_path / "model.onnx", [node], [matrix("W", np.full((64, 64), 127.0))], width=64)
    target = tmp_path / "target" / "model.onnx"
    ready = context(tmp_path, "feature-extraction")
    values = np.linspace(0, 1, 8 * 64, dtype=np.float32).reshape(8, 64)
    effect = _quantized(source, target, values, ready, per_channel=per_channel, reduce_range=reduce_range)
    assert f"reduce_range={'on' if reduce_range else 'off'} as asked: this CPU has" in effect.summary
    (y,) = open_quietly(target, 1).run(None, {"x": np.ones((2, 64), np.float32)})
    saturates = any("saturate" in warning for warning in effect.warnings)
    assert np.allclose(y, 64 * 127, rtol=0.01) or saturates


def test_ranges_follow_their_definitions() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(200_000).astype(np.float32)
    values[0] = 60.0
    whole, parts = Histogram(), Histogram()
    whole.add(values)
    for part in reversed(np.array_split(values, 7)):
        parts.add(part)
    assert np.array_equal(whole.counts, parts.counts)
    assert whole.range("minmax", 99.99) == (values.min(), 60.0)
    low, high = whole.range("percentile", 99.9)
    assert low == pytest.approx(np.percentile(values, 0.05), abs=2 * whole.reach * 2 / 8192)
    assert high == pytest.approx(np.percentile(values, 99.95), abs=2 * whole.reach * 2 / 8192)
    low, high = whole.range("entropy", 99.99)
    assert 3 < high < 10  # one outlier is clipped, the bell is not
    assert low >= values.min()


def test_what_it_cannot_do_is_refused_by_name() -> None:
    refused = Int8Static().refuse(Ask(task="text-generation", device="cpu", runtime=TorchEager()))
    assert refused is not None
    assert "int8-dynamic" in refused
    refused = Int8Static().refuse(Ask(task="text-generation", device="cuda", runtime=OnnxRuntime()))
    assert refused is not None
    assert "fp16 or bf16" in refused


def test_a_quality_floor_holds_on_the_real_graph(tmp_path: Path) -> None:
    module, ready = calibrating(tmp_path, "text-classification")
    source, target = exported(module, ready, tmp_path)
    effect = Int8Static(rows=16, max_drop=0.05).apply_onnx(source, target, ready)
    assert "max_drop 0.05 held" in effect.summary
    assert len(effect.sensitivity) == 14
    assert target.is_file()


class _Given(EncodedRows):
    """Rows that reach a graph's input ``x`` as they are."""

    def batch(self, rows: Any) -> Any:
        assert self.pixels is not None
        return {"x": self.pixels[list(rows)]}


def _quantized(source: Path, target: Path, values: Any, ready: BuildContext, **changes: Any) -> StepEffect:
    """What int8-static makes of a graph without a model around it, calibrated on ``values``."""
    target.parent.mkdir()
    settings = StaticSettings("int8-static", "minmax", 99.99, 128, True, "auto", False, False)
    settings = replace(settings, **changes)
    graph = open_linear_graph(source, (), convolutions=settings.convolutions)
    return quantize_statically(
        graph, target, settings, lambda path, names: collect(path, names, _Given(pixels=values), ready), ready
    )


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ({}, "recipe.0"),
        ({"calibration.csv": "text,label\n"}, "dataset"),
        ({"calibration.csv": "text,label\n,no\n"}, "dataset"),
    ],
)
def test_without_usable_calibration_rows_it_is_refused_at_the_form(
    files: dict[str, str], field: str, tmp_path: Path
) -> None:
    """FC-075: none named, a split without rows, and one whose rows are all empty."""
    from experiments.preflight import preflight
    from experiments.protocols import Host
    from experiments.records import DeviceFacts
    from experiments.spec import parse

    calibrating(tmp_path, "text-classification", rows=1)
    data = tmp_path / "data"
    data.mkdir()
    (data / "test.csv").write_text("text,label\nw1 w2,yes\nw3,no\n")
    for name, text in files.items():
        (data / name).write_text(text)
    experiment = {"name": "a", "recipe": [{"technique": "int8-static"}], "runtime": "onnxruntime"}
    spec = parse(
        {
            "name": "x",
            "model": {"source": "path", "path": str(tmp_path / "model")},
            "task": "text-classification",
            "dataset": {"source": "path", "path": str(data), **({"calibration_split": "calibration"} if files else {})},
            "workload": {"sequence_length": 16},
            "baseline": "a",
            "experiments": [experiment],
        }
    ).expand()[0]
    cpu = DeviceFacts(name="cpu:0", kind="cpu", model="Some CPU", memory_bytes=8 << 30, cores=(0, 1))
    (failure,) = preflight(spec, Host(cache=tmp_path / "cache"), [cpu]).failures
    assert failure.field == field, failure
