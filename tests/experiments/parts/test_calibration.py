"""Statistics of the inputs of linear layers, against a direct computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.parts import calibration
from experiments.parts.calibration import calibration_batches, input_statistics
from experiments.parts.linear_layers import linear_layers
from experiments.parts.loading import load_module
from experiments.protocols import BuildContext, Task
from experiments.records import ExperimentError
from tests.experiments.building import gpt2
from tests.experiments.calibrated import calibrated


def model(folder: Path, task: Task) -> tuple[Any, BuildContext]:
    """A tiny model and its context."""
    ctx = calibrated(folder, task)
    return load_module(ctx.source, task), ctx


def inputs_of(module: Any, name: str, batches: list[dict[str, Any]]) -> torch.Tensor:
    """(tokens, in) of one layer, padding left out by hand."""
    seen: list[torch.Tensor] = []
    handle = module.get_submodule(name).register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    kept = []
    for batch in batches:
        with torch.no_grad():
            module(**batch)
        x = seen.pop()
        kept.append(x[batch["attention_mask"].bool()] if x.ndim == 3 else x)
    handle.remove()
    return torch.cat(kept)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("text-classification", "bert.encoder.layer.1.output.dense"),
        ("text-classification", "classifier"),
        ("text-generation", "model.layers.1.mlp.down_proj"),
    ],
)
def test_statistics_equal_their_definition_without_padding(task: Task, name: str, tmp_path: Path) -> None:
    module, ctx = model(tmp_path, task)
    x = inputs_of(module, name, list(calibration_batches(ctx, 16)))
    found = input_statistics(module, ctx, samples=16)[name]
    assert found.tokens == len(x)
    assert torch.allclose(found.moment, x.t() @ x / len(x), atol=1e-5)
    assert torch.allclose(found.mean_abs, x.abs().mean(0), atol=1e-6)
    assert torch.allclose(found.norm, x.norm(dim=0), rtol=1e-4)
    assert torch.equal(found.largest, x.abs().amax(0))


def test_layers_that_read_the_same_tensor_share_their_statistics(tmp_path: Path) -> None:
    module, ctx = model(tmp_path, "text-generation")
    statistics = input_statistics(module, ctx)
    assert set(statistics) == {layer.name for layer in linear_layers(module)[0]}
    attention = "model.layers.0.self_attn"
    assert statistics.groups()[f"{attention}.q_proj"] == [f"{attention}.{n}_proj" for n in "qkv"]
    assert statistics["model.layers.1.mlp.up_proj"].source == "model.layers.1.mlp.gate_proj"


def test_a_model_too_large_for_one_run_gives_the_same_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, ctx = model(tmp_path, "text-generation")
    whole = input_statistics(module, ctx)
    monkeypatch.setattr(calibration, "MOMENTS_BYTES", 3 * 4 * 32 * 32)
    parted = input_statistics(module, ctx)
    assert list(whole) == list(parted)
    assert all(torch.equal(whole[name].moment, parted[name].moment) for name in whole)


def test_conv1d_projections_are_seen(tmp_path: Path) -> None:
    statistics = input_statistics(gpt2(), calibrated(tmp_path, "text-generation"))
    assert statistics["transformer.h.0.mlp.c_proj"].moment.shape == (128, 128)
    assert len(statistics) == 9


def test_an_input_that_is_not_finite_is_named(tmp_path: Path) -> None:
    module, ctx = model(tmp_path, "text-generation")
    with torch.no_grad():
        module.model.layers[0].mlp.up_proj.weight[0, 0] = float("inf")
    with pytest.raises(ExperimentError, match=r"model\.layers\.0\.mlp\.down_proj is not finite"):
        input_statistics(module, ctx)
