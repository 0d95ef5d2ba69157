"""Which layers stay wide so that a measured floor of quality holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from experiments.parts.accuracy_floor import next_try
from experiments.parts.calibration_score import CalibrationScore, calibration_rows
from experiments.parts.layer_sensitivity import sensitivities
from experiments.parts.quantizer import Quantizer
from experiments.parts.torch_session import TorchSession
from experiments.protocols import BuildContext, Task
from experiments.records import ExperimentError, FailureKind, StepEffect
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments.building import outputs_of, vit
from tests.experiments.calibrating import calibrating
from tests.experiments.techniques.training import training


class Coarse(torch.nn.Module):
    """A linear layer whose output is rounded to multiples of ``step``."""

    def __init__(self, layer: Any, step: float) -> None:
        super().__init__()
        self.layer, self.step = layer, step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) / self.step).round() * self.step


class Rough(Quantizer):
    """Ruins each layer it is let near: so that a floor has something to hold against."""

    technique: Literal["rough"] = "rough"
    forms = frozenset({"torch"})
    step: float = 0.5

    def quantize_torch(self, module: Any, keep: tuple[str, ...], context: BuildContext) -> tuple[Any, StepEffect]:
        from experiments.parts.layer_patterns import matched
        from experiments.parts.linear_layers import linear_layers, swap

        layers, _ = linear_layers(module)
        kept = matched(keep, [layer.name for layer in layers])
        for layer in layers:
            if layer.name not in kept:
                swap(module, layer.name, Coarse(layer.module, self.step))
        changed = len(layers) - len(kept)
        summary = f"{changed} of {len(layers)} linear layers roughened; step {self.step}"
        return module, StepEffect(technique="rough", summary=summary, changed=changed, of=len(layers), kept=kept)

    def simulated(self, layer: Any, context: BuildContext) -> Any:
        return Coarse(layer.module, self.step)


@pytest.mark.parametrize("task", ["text-classification", "text-generation", "feature-extraction"])
def test_each_sensitivity_is_that_of_one_layer_changed_in_the_whole_model(task: Task, tmp_path: Path) -> None:
    from experiments.parts.linear_layers import linear_layers, swap
    from experiments.parts.pooling import pooled
    from experiments.stats import cosine_rows, logits_divergence

    module, ready = calibrating(tmp_path, task, rows=12)
    rows = calibration_rows(ready, 1 if task == "text-generation" else 32, 192)
    (batch,) = rows.in_order(16)
    inputs = rows.batch(batch)
    wide = outputs_of(module, task, inputs)
    found = sensitivities(Rough(), lambda: module, ready)
    layers, _ = linear_layers(module)
    assert list(found.divergences.values()) == sorted(found.divergences.values(), reverse=True)
    assert len(found.divergences) == len(layers)
    for layer in (layers[0], layers[9], layers[-1]):
        swap(module, layer.name, Coarse(layer.module, 0.5))
        narrow = outputs_of(module, task, inputs)
        swap(module, layer.name, layer.module)
        if task == "feature-extraction":
            mask = inputs["attention_mask"]
            expected = 1 - float(cosine_rows(pooled(wide, mask), pooled(narrow, mask)).mean())
        else:
            flat = [logits.reshape(-1, logits.shape[-1]) for logits in (wide, narrow)]
            expected = float(logits_divergence(*flat).kl.mean())
        assert found.divergences[layer.name] == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert np.array_equal(outputs_of(module, task, inputs), wide)


def test_sensitivities_are_measured_once_for_all_floors(tmp_path: Path) -> None:
    asked: list[tuple[str, Any]] = []

    def remember(kind: str, key: Any, make: Any) -> Path:
        folder = tmp_path / "kept"
        if not folder.exists():
            folder.mkdir()
            make(folder)
        asked.append((kind, key))
        return folder

    module, ready = calibrating(tmp_path, "text-classification", rows=8, remember=remember)
    first = sensitivities(Rough(max_drop=0.1), lambda: module, ready)

    def never() -> Any:
        raise AssertionError("it is known already")

    assert sensitivities(Rough(max_drop=0.2, keep=("classifier",)), never, ready) == first
    assert asked[0] == asked[1]
    assert asked[0][0] == "sensitivities"


@pytest.mark.parametrize(
    ("task", "floor"), [("text-classification", 0.03), ("text-generation", 0.01), ("feature-extraction", 0.005)]
)
def test_the_fewest_most_sensitive_layers_stay_wide_with_which_the_floor_holds(
    task: Task, floor: float, tmp_path: Path
) -> None:
    module, ready = calibrating(tmp_path, task)
    built, effect = Rough(max_drop=floor).apply_torch(module, ready)
    score = CalibrationScore(calibration_rows(ready, 512 if task != "text-generation" else 8), task)
    before = score.judge(TorchSession(module, task, "cpu", 0).forward)

    def loss(candidate: Any) -> float:
        return score.loss(before, score.judge(TorchSession(candidate, task, "cpu", 0).forward))

    kept = [row.layer for row in effect.sensitivity if row.kept]
    assert 0 < len(kept) < effect.of
    assert kept == [row.layer for row in effect.sensitivity][: len(kept)]
    assert set(kept) == set(effect.kept)
    assert loss(built) <= floor
    one_less, _ = Rough(keep=tuple(kept[:-1])).apply_torch(calibrating(tmp_path, task)[0], ready)
    assert loss(one_less) > floor
    assert f"{len(kept)} most sensitive of" in effect.summary
    assert f"loses {loss(built):.3g}" in effect.summary
    assert "wide for max_drop" in effect.kept[kept[0]]
    assert effect.sensitivity_measure is not None


def test_a_floor_that_holds_anyway_keeps_nothing_and_still_tells_sensitivities(tmp_path: Path) -> None:
    module, ready = calibrating(tmp_path, "text-classification")
    _, effect = Int8Dynamic(max_drop=0.05).apply_torch(module, ready)
    assert effect.summary.startswith("14 of 14 linear layers quantized; max_drop 0.05 held on 48 calibration rows")
    assert len(effect.sensitivity) == 14
    assert not any(row.kept for row in effect.sensitivity)


def test_images_have_a_floor_too(tmp_path: Path) -> None:
    ready = training(tmp_path, "image-classification")
    ready = replace(ready, facts=replace(ready.facts, labels=tuple(map(str, range(10)))))
    _, effect = Int8Dynamic(max_drop=0.2).apply_torch(vit(), ready)
    assert "accuracy loses" in effect.summary
    assert len(effect.sensitivity) == 13


@pytest.mark.parametrize("most", [0, 1, 2, 14, 210])
def test_the_search_ends_at_the_fewest_wide_layers_whatever_the_guess(most: int) -> None:
    for answer in range(most + 2):  # most + 1: none holds
        for guess in {0, 1, most // 3, most}:
            losses = {0: 0.0 if answer == 0 else 1.0}
            while (wide := next_try(losses, 0.5, most, guess)) is not None:
                assert 0 < wide <= most
                assert wide not in losses
                losses[wide] = 0.0 if wide >= answer else 1.0
            holding = [wide for wide, loss in losses.items() if loss <= 0.5]
            assert min(holding, default=most + 1) == answer
            assert len(losses) <= 2 + 2 * most.bit_length()
    close = {0: 1.0}
    while (wide := next_try(close, 0.5, 210, 12)) is not None:
        close[wide] = 0.0 if wide >= 13 else 1.0
    assert len(close) <= 4  # a good guess needs few artifacts


def test_a_floor_that_no_choice_holds_is_a_failure_with_the_figures(tmp_path: Path) -> None:
    module, ready = calibrating(tmp_path, "feature-extraction")
    with pytest.raises(ExperimentError, match=r"with 11 of 12 layers kept wide, 1 - mean cosine still loses") as caught:
        Rough(max_drop=1e-12, keep=("pooler.dense",)).apply_torch(module, ready)
    assert caught.value.failure.kind is FailureKind.NO_EFFECT
    assert "11" in caught.value.failure.detail["losses"]
    assert caught.value.failure.field == "recipe.max_drop"


def test_the_floor_holds_for_a_real_graph(tmp_path: Path) -> None:
    from experiments.runtimes.onnxruntime import OnnxRuntime

    module, ready = calibrating(tmp_path, "text-generation")
    for layer in module.model.layers:  # one wide outlier a layer ruins a per-tensor scale
        layer.mlp.down_proj.weight.data[0, 0] = 40.0
    ready = replace(ready, module=lambda: module)
    for name in ("graph", "target"):
        (tmp_path / name).mkdir(exist_ok=True)
    source, target = tmp_path / "graph" / "model.onnx", tmp_path / "target" / "model.onnx"
    OnnxRuntime().save(module, source.parent, ready, ())
    step = Int8Dynamic(per_channel=False, max_drop=0.0005)
    effect = step.apply_onnx(source, target, ready)
    kept = [row.layer for row in effect.sensitivity if row.kept]
    assert kept
    assert set(kept) == set(effect.kept)
    assert "relative perplexity loses" in effect.summary


def test_answers_that_are_not_finite_never_hold_a_floor(tmp_path: Path) -> None:
    module, ready = calibrating(tmp_path, "text-generation")
    score = CalibrationScore(calibration_rows(ready, 2), "text-generation")
    forward = TorchSession(module, "text-generation", "cpu", 0).forward
    before = score.judge(forward)
    assert score.loss(before, score.judge(lambda inputs: forward(inputs) * np.nan)) == float("inf")
    assert score.loss(before, before) == 0


def test_windows_are_shortened_where_the_text_is(tmp_path: Path) -> None:
    _, ready = calibrating(tmp_path, "text-generation", rows=3)
    rows = calibration_rows(ready, 8)
    assert 0 < len(rows.tokens[0]) < 256
