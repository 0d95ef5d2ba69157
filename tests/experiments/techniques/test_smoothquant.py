"""SmoothQuant on graphs and modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from onnx import helper, numpy_helper

from experiments.parts.linear_graph import open_linear_graph
from experiments.parts.onnx_graph import save_graph
from experiments.parts.smooth_graph import smooth_graph
from experiments.parts.summaries import first_clause
from experiments.protocols import Ask, Task
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.int8_dynamic import Int8Dynamic
from experiments.techniques.smoothquant import SmoothQuant
from tests.experiments.building import bert, context, cosine, gpt2, inputs_for, llama, outputs_of, vit
from tests.experiments.calibrating import calibrating, exported
from tests.experiments.onnx_files import matrix, write


@pytest.mark.parametrize(
    ("make", "task", "folded", "multiplied"),
    [
        (bert, "text-classification", 0, 14),
        (llama, "text-generation", 12, 2),
        (gpt2, "text-generation", 4, 4),
        (vit, "image-classification", 8, 5),
    ],
)
def test_smoothing_changes_no_answer_and_is_folded_where_it_can_be(
    make: Any, task: Task, folded: int, multiplied: int, tmp_path: Path
) -> None:
    module = make()
    inputs = inputs_for(task)
    source, target = exported(module, context(tmp_path, task), tmp_path)
    graph = open_linear_graph(source, ())
    rng = np.random.default_rng(0)
    widths = {}
    for node in graph.model.graph.node:
        if node.name in graph.layers:
            dims = next(t.dims for t in graph.model.graph.initializer if t.name == node.input[1])
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            widths[node.input[0]] = rng.uniform(0.5, 60, dims[1 if transposed else 0]).astype(np.float32)
    smoothed = smooth_graph(graph, widths, 0.5, everywhere=True)
    assert (len(smoothed.folded), len(smoothed.multiplied)) == (folded, multiplied)
    save_graph(graph.model, target)
    ready = context(tmp_path, task)
    OnnxRuntime().finish(target.parent, ready)
    answers = OnnxRuntime().open(target.parent, "cpu", 1).forward(inputs)
    assert np.abs(answers - outputs_of(module, task, inputs)).max() < 1e-4


def test_factors_are_those_of_the_paper(tmp_path: Path) -> None:
    weight = np.array([[1.0, -4.0], [0.25, 0.125]])
    source = write(
        tmp_path / "model.onnx",
        [helper.make_node("MatMul", ["x", "W"], ["y"], name="/layer/MatMul")],
        [matrix("W", weight)],
        width=2,
    )
    graph = open_linear_graph(source, ())
    smooth_graph(graph, {"x": np.array([9.0, 100.0], np.float32)}, 0.5, everywhere=True)
    constants = {t.name: numpy_helper.to_array(t) for t in graph.model.graph.initializer}
    factors = np.sqrt(np.array([9.0, 100.0]) / np.array([4.0, 0.25]))
    assert np.allclose(1 / constants["x_smoothing"], factors)
    assert np.allclose(constants["W"], weight * factors[:, None])


@pytest.mark.parametrize("activations", ["dynamic", "static"])
def test_outliers_in_channels_cost_less_after_smoothing(
    activations: Literal["dynamic", "static"], tmp_path: Path
) -> None:
    module, ready = calibrating(tmp_path, "text-generation")
    norm = module.model.layers[0].post_attention_layernorm
    norm.weight.data[3] *= 60  # a channel whose values are 60 times the others', as in large models
    for name in ("gate_proj", "up_proj"):
        getattr(module.model.layers[0].mlp, name).weight.data[:, 3] /= 60
    inputs = {"input_ids": np.array([[4, 9, 12, 30, 5, 20, 33]]), "attention_mask": np.ones((1, 7), np.int64)}
    wide = outputs_of(module, "text-generation", inputs)
    source, target = exported(module, ready, tmp_path)
    found = {}
    for step in (Int8Dynamic(), SmoothQuant(activations=activations, rows=32)):
        effect = step.apply_onnx(source, target, ready)
        OnnxRuntime().finish(target.parent, ready)
        found[step.technique] = 1 - cosine(wide, OnnxRuntime().open(target.parent, "cpu", 1).forward(inputs))
    assert found["smoothquant"] < 0.6 * found["int8-dynamic"]
    assert "smoothed for free in the norm or product before them" in effect.summary
    assert effect.summary.startswith("15 of 15 linear layers quantized")


def test_a_torch_module_is_smoothed_saved_and_reloaded_equal(tmp_path: Path) -> None:
    module, ready = calibrating(tmp_path, "text-classification")
    inputs = {"input_ids": np.array([[1, 9, 12, 30, 2]]), "attention_mask": np.ones((1, 5), np.int64)}
    wide = outputs_of(module, "text-classification", inputs)
    module, effect = SmoothQuant(embeddings=True, keep=("classifier",)).apply_torch(module, ready)
    assert effect.summary.startswith("13 of 14 linear layers quantized")
    assert "inputs of 13 layers smoothed" in effect.summary
    expected = outputs_of(module, "text-classification", inputs)
    assert cosine(wide, expected) > 0.99
    TorchEager().save(module, tmp_path / "saved", ready, ())
    session = TorchEager().open(tmp_path / "saved", "cpu", 1)
    assert np.abs(session.forward(inputs) - expected).max() <= 1e-6


def test_gpt2s_conv1d_projections_are_smoothed_transposed(tmp_path: Path) -> None:
    """FC-013."""
    import torch

    from experiments.parts.int8_settings import DynamicSettings
    from experiments.parts.int8_torch import quantize_linears
    from experiments.parts.linear_layers import linear_layers
    from experiments.parts.rounding import smoothing

    source, module = gpt2(), gpt2()
    x = torch.randn(3, 5, 32)
    x[..., 7] *= 50
    scales = {
        layer.name: smoothing(torch.rand(layer.weight.shape[1]) + 1, layer.weight, 0.5)
        for layer in linear_layers(module)[0]
    }
    wide, name = source.transformer.h[0].mlp.c_fc, "transformer.h.0.mlp.c_fc"
    scales[name] = smoothing(x.abs().amax(dim=(0, 1)), wide.weight.t(), 0.5)
    settings = DynamicSettings("smoothquant", True, "auto", False)
    module, effect = quantize_linears(module, settings, (), context(tmp_path, "text-generation"), scales)
    assert effect.changed == 8
    layer = module.transformer.h[0].mlp.c_fc
    assert torch.allclose(layer(x), wide(x), atol=0.05)
    plain, _ = quantize_linears(gpt2(), settings, (), context(tmp_path, "text-generation"))
    rough = (plain.transformer.h[0].mlp.c_fc(x) - wide(x)).abs().mean()
    assert (layer(x) - wide(x)).abs().mean() < 0.7 * rough


def test_what_it_cannot_do_is_refused_by_name() -> None:
    ask = Ask(task="text-generation", device="cpu", runtime=TorchEager())
    assert SmoothQuant().refuse(ask) is None
    assert "activations dynamic" in str(SmoothQuant(activations="static").refuse(ask))


def test_what_stands_in_parentheses_is_never_cut() -> None:
    said = "8 of 9 layers quantized, 1 kept (lm_head: shares its tensor; kept float); embeddings kept float; more"
    assert first_clause(said) == (said.partition("); ")[0] + ")", "embeddings kept float; more")
    assert first_clause("all") == ("all", "")
