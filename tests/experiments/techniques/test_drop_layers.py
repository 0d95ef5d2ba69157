"""Dropping layers: the blocks that are named or matter least go, and the rest computes as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from experiments.parts.influence import block_influence
from experiments.parts.tied_weights import parameter_count
from experiments.parts.torch_files import load_module
from experiments.protocols import Ask, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.drop_layers import DropLayers
from experiments.techniques.prune_structured import PruneStructured
from tests.experiments.building import bert, context, gpt2, inputs_for, llama, outputs_of, vit
from tests.experiments.techniques.pruning import calibrating, distilbert, graph_of, qwen2


def deep_qwen2() -> Any:
    """Four blocks, the second of which passes its input on unchanged."""
    module = qwen2(num_hidden_layers=4)
    with torch.no_grad():
        module.model.layers[1].self_attn.o_proj.weight.zero_()
        module.model.layers[1].mlp.down_proj.weight.zero_()
    return module


@pytest.mark.parametrize(
    ("make", "task"),
    [
        (bert, "text-classification"),
        (distilbert, "text-classification"),
        (gpt2, "text-generation"),
        (llama, "text-generation"),
        (vit, "image-classification"),
    ],
)
def test_a_named_layer_goes_and_a_reload_answers_alike(make: Callable[[], Any], task: Task, tmp_path: Path) -> None:
    module, ctx, inputs = make(), context(tmp_path, task), inputs_for(task)
    before = parameter_count(module)
    module, effect = DropLayers(layers=(0,)).apply_torch(module, ctx)
    assert module.config.num_hidden_layers == 1
    assert effect.removed == before - parameter_count(module) > 0
    assert effect.summary.startswith("1 of 2 blocks dropped (number 0, counted from 0)")
    (tmp_path / "a").mkdir()
    TorchEager().save(module, tmp_path / "a", ctx, ())
    again = load_module(tmp_path / "a", "cpu")
    assert np.array_equal(outputs_of(again, task, inputs), outputs_of(module, task, inputs))


def test_the_block_with_the_least_influence_goes_and_generation_still_works(tmp_path: Path) -> None:
    module, ctx = deep_qwen2(), calibrating(tmp_path, "text-generation")
    inputs = inputs_for("text-generation")
    before = outputs_of(module, "text-generation", inputs)
    influence = block_influence(module, module.model.layers, ctx, samples=8)
    assert influence[1] == pytest.approx(0, abs=1e-6)
    assert min(influence[0], influence[2], influence[3]) > 1e-4
    module, effect = DropLayers(count=1, samples=8).apply_torch(module, ctx)
    assert "1 of 4 blocks dropped (number 1, counted from 0)" in effect.summary
    assert "influence 1: " in effect.summary
    assert np.abs(outputs_of(module, "text-generation", inputs) - before).max() < 1e-5
    assert [layer.self_attn.layer_idx for layer in module.model.layers] == [0, 1, 2]
    assert len(module.config.layer_types) == 3
    (tmp_path / "torch").mkdir()
    TorchEager().save(module, tmp_path / "torch", ctx, ())
    tokens = TorchEager().open(tmp_path / "torch", "cpu", 1).generate(inputs["input_ids"], 4).tokens
    graph = graph_of(module, tmp_path / "onnx", ctx)
    assert np.array_equal(graph.generate(inputs["input_ids"], 4).tokens, tokens)


def test_influence_is_one_minus_the_mean_cosine_of_a_block_without_padding(tmp_path: Path) -> None:
    from experiments.parts.calibration import calibration_batches

    module, ctx = bert(), calibrating(tmp_path, "text-classification", texts=("w1 w2", "w1 w2 w3 w4 w5 w6", "w7"))
    cosines: list[torch.Tensor] = []
    for batch in calibration_batches(ctx, 3):
        with torch.no_grad():
            states = module(**batch, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"].bool()
        cosines.append(torch.nn.functional.cosine_similarity(states[0], states[1], dim=-1)[mask])
    found = block_influence(module, module.bert.encoder.layer, ctx, samples=3)
    assert found[0] == pytest.approx(1 - float(torch.cat(cosines).mean()), abs=1e-5)


def test_heads_that_an_earlier_step_removed_keep_their_block(tmp_path: Path) -> None:
    ctx, inputs = context(tmp_path, "text-classification"), inputs_for("text-classification")
    module, _ = PruneStructured(amount=0.5, parts=("heads",)).apply_torch(bert(), ctx)
    heads = module.config.pruned_heads[1]
    module, _ = DropLayers(layers=(0,)).apply_torch(module, ctx)
    assert module.config.pruned_heads == {0: heads}
    (tmp_path / "a").mkdir()
    TorchEager().save(module, tmp_path / "a", ctx, ())
    expected = outputs_of(module, "text-classification", inputs)
    assert np.array_equal(outputs_of(load_module(tmp_path / "a", "cpu"), "text-classification", inputs), expected)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (DropLayers(count=2), "2 layers can't be dropped from a model that has 2; drop at most 1"),
        (DropLayers(layers=(0, 1)), "2 layers can't be dropped from a model that has 2"),
        (DropLayers(layers=(5,)), "there is no layer 5: the model has 2, counted from 0 to 1"),
    ],
)
def test_more_layers_than_there_are_is_refused_at_submission_and_by_the_builder(
    step: DropLayers, words: str, tmp_path: Path
) -> None:
    facts = ModelFacts("m", "bert", (), "text-classification", 0, "float32", 0, layers=2)
    asked = Ask(task="text-classification", device="cpu", runtime=TorchEager(), model=facts)
    assert words in (step.refuse(asked) or "")
    assert step.valid(facts) == {"count": {"min": 1, "max": 1}, "layers": [0, 1]}
    with pytest.raises(ExperimentError, match=words.split(";")[0]) as caught:
        step.apply_torch(bert(), context(tmp_path, "text-classification"))
    assert caught.value.failure.kind is FailureKind.UNSUPPORTED


def test_senseless_choices_are_refused() -> None:
    for settings in ({"count": 1, "layers": (1,)}, {"layers": (-1,)}, {"layers": (1, 1)}, {"count": 0}):
        with pytest.raises(ValidationError):
            DropLayers.model_validate(settings)
    assert DropLayers().number == 1
    assert DropLayers().needs() == {"calibration"}
    assert DropLayers(layers=(0,)).needs() == frozenset()


def test_a_model_that_scales_by_block_number_is_refused(tmp_path: Path) -> None:
    module = gpt2()
    module.config.scale_attn_by_inverse_layer_idx = True
    with pytest.raises(ExperimentError, match="scales attention by the number of the block"):
        DropLayers(layers=(0,)).apply_torch(module, context(tmp_path, "text-generation"))
