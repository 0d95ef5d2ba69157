"""Structured pruning: what is gone is gone, config.json says it, and any loader gets the same answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.parts.block_anatomy import head_units, remaining_neurons, removed_units
from experiments.parts.channel_pruning import prune_channels
from experiments.parts.structured import prune_blocks
from experiments.parts.tied_weights import parameter_count, unique_bytes
from experiments.parts.torch_files import load_module
from experiments.protocols import Ask, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.int8_dynamic import Int8Dynamic
from experiments.techniques.prune_structured import PruneStructured
from tests.experiments.building import bert, context, gpt2, in_fresh_process, inputs_for, llama, outputs_of, vit
from tests.experiments.techniques.pruning import calibrating, distilbert, graph_of, qwen2

KINDS: list[Any] = [
    pytest.param(make, task, id=make.__name__)
    for make, task in (
        (bert, "text-classification"),
        (distilbert, "text-classification"),
        (gpt2, "text-generation"),
        (llama, "text-generation"),
        (qwen2, "text-generation"),
        (vit, "image-classification"),
    )
]


def facts(model_type: str, heads: int | None, kv_heads: int | None = None) -> ModelFacts:
    """What submission knows of a model."""
    return ModelFacts("m", model_type, (), None, 0, "float32", 0, heads=heads, kv_heads=kv_heads or heads, layers=2)


def refused(step: PruneStructured, model: ModelFacts, runtime: Any = None) -> str:
    """The refusal's sentence, or nothing."""
    asked = Ask(task="text-generation", device="cpu", runtime=runtime or TorchEager(), model=model)
    return step.refuse(asked) or ""


def resnet(**changes: Any) -> Any:
    """A classifier of two stages over grey images."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    settings = {"num_channels": 1, "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 1], "num_labels": 10}
    return ResNetForImageClassification(ResNetConfig(**{**settings, "layer_type": "basic", **changes})).eval()


@pytest.mark.parametrize(("make", "task"), KINDS)
def test_half_of_the_neurons_and_heads_go_and_a_reload_answers_alike(
    make: Callable[[], Any], task: Task, tmp_path: Path
) -> None:
    module = make()
    before, inputs = parameter_count(module), inputs_for(task)
    wide = outputs_of(module, task, inputs)
    ctx = context(tmp_path, task)
    module, effect = PruneStructured(amount=0.5).apply_torch(module, ctx)
    assert effect.removed == before - parameter_count(module) > 0.25 * before
    assert f"{effect.removed:,} of {before:,} parameters removed" in effect.summary
    narrow = outputs_of(module, task, inputs)
    assert narrow.shape == wide.shape
    (tmp_path / "a").mkdir()
    TorchEager().save(module, tmp_path / "a", ctx, ())
    assert np.array_equal(outputs_of(load_module(tmp_path / "a", "cpu"), task, inputs), narrow)
    # Pruning what was pruned before counts from what is left.
    module, again = PruneStructured(amount=0.5).apply_torch(module, ctx)
    assert again.removed is not None
    TorchEager().save(module, tmp_path / "a", ctx, ())
    assert np.array_equal(
        outputs_of(load_module(tmp_path / "a", "cpu"), task, inputs), outputs_of(module, task, inputs)
    )


def test_fc_023_grouped_query_models_reload_in_a_new_process_with_config_updated(tmp_path: Path) -> None:
    inputs = inputs_for("text-generation")
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **inputs)
    expected = {}
    for amount, heads, kv_heads, neurons in ((0.25, 4, 2, 96), (0.5, 2, 1, 64)):
        module = qwen2()
        before = parameter_count(module)
        module, effect = PruneStructured(amount=amount).apply_torch(module, context(tmp_path, "text-generation"))
        folder = tmp_path / str(amount)
        folder.mkdir()
        TorchEager().save(module, folder, context(tmp_path, "text-generation"), ())
        config = json.loads((folder / "config.json").read_text())
        assert config["intermediate_size"] == neurons
        assert (config["num_attention_heads"], config["num_key_value_heads"]) == (heads, kv_heads)
        assert module.model.layers[0].self_attn.q_proj.weight.shape == (heads * 16, 64)
        if heads < 4:
            assert config["head_dim"] == 16
        else:
            assert (
                effect.kept["heads"]
                == "25% of 2 groups of 2 heads that share a key-value head is less than one; amounts: 0.5"
            )
        assert f"({(effect.removed or 0) / before:.1%})" in effect.summary
        expected[amount] = (outputs_of(module, "text-generation", inputs), before - (effect.removed or 0))
    answer = in_fresh_process(
        """
        from pathlib import Path
        import numpy as np, torch, transformers
        folder, answer = Path(values["folder"]), {}
        feeds = {k: torch.from_numpy(v) for k, v in np.load(folder / "inputs.npz").items()}
        for name in ("0.25", "0.5"):
            model, info = transformers.AutoModelForCausalLM.from_pretrained(folder / name, output_loading_info=True)
            with torch.no_grad():
                np.save(folder / f"{name}.npy", model.eval()(**feeds).logits.numpy())
            answer[name] = [model.num_parameters(), *(len(info[k]) for k in ("missing_keys", "mismatched_keys"))]
        """,
        folder=str(tmp_path),
    )
    for amount, (logits, left) in expected.items():
        assert answer[str(amount)] == [left, 0, 0]
        assert np.abs(np.load(tmp_path / f"{amount}.npy") - logits).max() <= 1e-6


def test_only_what_is_named_is_removed(tmp_path: Path) -> None:
    module, effect = PruneStructured(amount=0.5, parts=("ffn",)).apply_torch(
        bert(), context(tmp_path, "text-classification")
    )
    assert module.config.intermediate_size == 32
    assert not module.config.pruned_heads
    assert effect.warnings == ()
    module, effect = PruneStructured(amount=0.5, parts=("heads",)).apply_torch(
        bert(), context(tmp_path, "text-classification")
    )
    assert module.config.intermediate_size == 64
    assert {len(heads) for heads in module.config.pruned_heads.values()} == {2}
    assert "4 -> 2 heads in each block" in effect.summary
    assert "pruned_heads, which transformers 4 reads" in effect.warnings[0]


def test_the_smallest_neurons_and_heads_go_and_zero_ones_change_nothing(tmp_path: Path) -> None:
    module = llama()
    inputs = inputs_for("text-generation")
    with torch.no_grad():
        for layer in module.model.layers:
            layer.mlp.down_proj.weight[:, 8:40] *= 0
            layer.mlp.up_proj.weight[8:40] *= 0
            layer.mlp.gate_proj.weight[8:40] *= 0
            layer.self_attn.o_proj.weight[:, :16] *= 0  # the first of two groups of two heads of 8
            layer.self_attn.q_proj.weight[:16] *= 0
    before = outputs_of(module, "text-generation", inputs)
    module, _ = PruneStructured(amount=0.5).apply_torch(module, context(tmp_path, "text-generation"))
    assert module.config.num_key_value_heads == 1
    assert np.abs(outputs_of(module, "text-generation", inputs) - before).max() < 1e-6


def test_importance_can_be_what_passes_through_on_calibration_rows(tmp_path: Path) -> None:
    module = bert()
    with torch.no_grad():  # large weights around neurons that are never active
        for layer in module.bert.encoder.layer:
            layer.intermediate.dense.weight[:32] *= 0
            layer.intermediate.dense.bias[:32] = -20.0
            layer.output.dense.weight[:, :32] *= 50
    stays = [layer.intermediate.dense.weight[32:].clone() for layer in module.bert.encoder.layer]
    step = PruneStructured(amount=0.5, parts=("ffn",), importance="activation")
    assert step.needs() == {"calibration"}
    module, _ = step.apply_torch(module, calibrating(tmp_path, "text-classification"))
    for layer, rows in zip(module.bert.encoder.layer, stays, strict=True):
        assert torch.equal(layer.intermediate.dense.weight, rows)


@pytest.mark.parametrize(
    ("make", "task", "parts"),
    [
        (bert, "text-classification", ("ffn", "heads")),
        (llama, "text-generation", ("ffn", "heads")),
        (gpt2, "text-generation", ("ffn",)),
        (vit, "image-classification", ("ffn", "heads")),
    ],
)
def test_a_pruned_model_exports_and_the_graph_answers_alike(
    make: Callable[[], Any], task: Task, parts: Any, tmp_path: Path
) -> None:
    ctx, inputs = context(tmp_path, task), inputs_for(task)
    module, _ = PruneStructured(amount=0.5, parts=parts).apply_torch(make(), ctx)
    expected = outputs_of(module, task, inputs)
    session = graph_of(module, tmp_path / "onnx", ctx)
    assert np.abs(session.forward(inputs) - expected).max() < 1e-4
    if task == "text-generation":
        prompt = inputs["input_ids"]
        (tmp_path / "torch").mkdir()
        TorchEager().save(module, tmp_path / "torch", ctx, ())
        tokens = TorchEager().open(tmp_path / "torch", "cpu", 1).generate(prompt, 4).tokens
        assert np.array_equal(session.generate(prompt, 4).tokens, tokens)


def test_a_pruned_model_can_be_quantized_afterwards(tmp_path: Path) -> None:
    ctx, inputs = context(tmp_path, "text-classification"), inputs_for("text-classification")
    module, _ = PruneStructured(amount=0.5).apply_torch(bert(), ctx)
    module, _ = Int8Dynamic().apply_torch(module, ctx)
    expected = outputs_of(module, "text-classification", inputs)
    (tmp_path / "a").mkdir()
    TorchEager().save(module, tmp_path / "a", ctx, ())
    assert np.array_equal(outputs_of(load_module(tmp_path / "a", "cpu"), "text-classification", inputs), expected)


def test_fc_083_batch_norm_follows_with_and_without_running_statistics(tmp_path: Path) -> None:
    from torch import nn

    def network(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, width, 3),
            nn.BatchNorm2d(width, track_running_stats=False),
            nn.ReLU(),
            nn.Conv2d(width, width, 3),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 10),
        ).eval()

    torch.manual_seed(0)
    module, images = network(8), torch.randn(4, 1, 12, 12)
    changed = prune_channels(module, images[:1], lambda name, width: round(0.75 * width))
    assert set(changed.values()) == {(8, 6)}
    buffers = {name: tuple(b.shape) for name, b in module.named_buffers()}
    assert buffers == {"4.running_mean": (6,), "4.running_var": (6,), "4.num_batches_tracked": ()}
    again = network(6)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(images), module(images))
    parameters = sum(p.numel() for p in again.parameters())
    assert parameter_count(module) == parameters
    assert unique_bytes(module) == 4 * parameters + 2 * 6 * 4 + 8


@pytest.mark.parametrize("changes", [{}, {"layer_type": "bottleneck", "hidden_sizes": [32, 64]}])
def test_every_stage_of_a_resnet_narrows_and_a_reload_answers_alike(changes: dict[str, Any], tmp_path: Path) -> None:
    module = resnet(**changes)
    before, images = parameter_count(module), {"pixel_values": torch.randn(2, 1, 32, 32).numpy()}
    ctx = context(tmp_path, "image-classification")
    module, effect = PruneStructured(amount=0.25, multiple=4).apply_torch(module, ctx)
    assert module.config.hidden_sizes == ([24, 48] if changes else [12, 24])
    assert effect.removed == before - parameter_count(module)
    assert "channels in all stages" in effect.summary
    (tmp_path / "a").mkdir()
    TorchEager().save(module, tmp_path / "a", ctx, ())
    expected = outputs_of(module, "image-classification", images)
    assert np.array_equal(outputs_of(load_module(tmp_path / "a", "cpu"), "image-classification", images), expected)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "amount", "removed", "units"),
    [
        (12, 12, 0.3, 4, 12),
        (9, 3, 0.3, 1, 3),
        (4, 2, 0.25, 0, 2),
        (4, 2, 0.5, 1, 2),
        (4, 1, 0.3, 1, 4),
        (2, 2, 0.9, 1, 2),
    ],
)
def test_heads_go_in_whole_groups_and_one_always_stays(
    heads: int, kv_heads: int, amount: float, removed: int, units: int
) -> None:
    assert head_units(heads, kv_heads) == units
    assert removed_units(units, amount) == removed


def test_neurons_that_stay_are_a_multiple_where_that_is_fewer() -> None:
    assert remaining_neurons(1536, 0.3, 8) == 1072
    assert remaining_neurons(128, 0.25, 8) == 96
    assert remaining_neurons(10, 0.3, 8) == 8
    assert remaining_neurons(8, 0.3, 8) == 6


def test_submission_says_what_cannot_be_pruned_and_what_to_choose() -> None:
    assert "choose prune-magnitude or prune-wanda" in refused(PruneStructured(), facts("phi3", 8))
    assert refused(PruneStructured(amount=0.25), facts("qwen2", 4, 2)) == ""
    only_heads = PruneStructured(amount=0.2, parts=("heads",))
    assert "amounts that divide are 0.5" in refused(only_heads, facts("qwen2", 4, 2))
    assert "set parts to [ffn]" in refused(PruneStructured(), facts("gpt2", 4), OnnxRuntime())
    assert refused(PruneStructured(parts=("ffn",)), facts("gpt2", 4), OnnxRuntime()) == ""
    assert "set importance to weight" in refused(PruneStructured(importance="activation"), facts("resnet", None))


def test_only_amounts_that_work_are_offered() -> None:
    assert PruneStructured().valid(facts("llama", 9, 3))["amount"] == [0.333, 0.667]
    assert PruneStructured(parts=("ffn",)).valid(facts("llama", 9, 3))["amount"] == {"min": 0.01, "max": 0.95}
    assert PruneStructured().valid(facts("phi3", 8)) == {}


def test_nothing_to_remove_is_no_effect_and_names_the_amounts(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"10% of 4 heads is less than one; amounts: 0.25, 0.5, 0.75") as caught:
        PruneStructured(amount=0.1, parts=("heads",)).apply_torch(bert(), context(tmp_path, "text-classification"))
    assert caught.value.failure.kind is FailureKind.NO_EFFECT


def test_an_unknown_kind_of_block_is_refused_by_name() -> None:
    module = bert()
    module.config.model_type = "nothing-known"
    with pytest.raises(ExperimentError, match="model type 'nothing-known' are not known"):
        prune_blocks(module, 0.5, ("ffn",), 8, None)
