"""Masks: exactly the weights that the method names become zero, nothing else changes, and nothing is claimed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from experiments.builder import zero_weights
from experiments.parts.calibration import input_statistics
from experiments.parts.linear_layers import linear_layers
from experiments.parts.masks import smallest, smallest_of_rows, two_of_four
from experiments.parts.packed_layers import packed_layers
from experiments.parts.sparse_2_4_packing import pack_layers
from experiments.parts.sparsegpt import inverse_factor, sparsegpt
from experiments.parts.tied_weights import parameter_count
from experiments.parts.torch_files import load_module
from experiments.protocols import Ask, DeviceKind, ModelFacts, Runtime, Technique
from experiments.records import ExperimentError, FailureKind, Label, Report
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.int8_dynamic import Int8Dynamic
from experiments.techniques.prune_2_4 import Prune24
from experiments.techniques.prune_magnitude import PruneMagnitude
from experiments.techniques.prune_sparsegpt import PruneSparseGPT
from experiments.techniques.prune_wanda import PruneWanda
from tests.experiments.building import bert, context, gpt2, inputs_for, llama, outputs_of, vit
from tests.experiments.techniques.pruning import calibrating, distilbert, qwen2, zero_shares


def weights_of(module: Any) -> dict[str, torch.Tensor]:
    """Layer name -> a copy of its (out, in) weight."""
    return {layer.name: layer.weight.detach().clone() for layer in linear_layers(module)[0]}


def test_masks_have_exactly_the_count_that_was_asked_for_ties_included() -> None:
    scores = torch.tensor([[1.0, 0.0, 1.0, 1.0], [2.0, 1.0, 0.5, 1.0]])
    assert smallest(scores, 4).tolist() == [[True, True, True, False], [False, False, True, False]]
    assert smallest(scores, 0).sum() == 0
    assert smallest_of_rows(scores, 2).tolist() == [[True, True, False, False], [False, True, True, False]]
    assert two_of_four(torch.tensor([[4.0, 3, 2, 1, 1, 1, 1, 1]])).tolist() == [
        [False, False, True, True, True, True, False, False]
    ]


@pytest.mark.parametrize(
    ("make", "task", "changed", "of"),
    [
        (llama, "text-generation", 14, 15),
        (gpt2, "text-generation", 8, 9),
        (bert, "text-classification", 12, 14),
        (vit, "image-classification", 12, 13),
    ],
)
def test_magnitude_zeroes_the_smallest_weights_of_the_blocks_and_leaves_the_rest_bit_identical(
    make: Any, task: Any, changed: int, of: int, tmp_path: Path
) -> None:
    module = make()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    zeros_before = zero_weights(module)
    module, effect = PruneMagnitude(amount=0.6).apply_torch(module, context(tmp_path, task))
    assert (effect.changed, effect.of, len(effect.kept)) == (changed, of, of - changed)
    assert effect.zeros == zero_weights(module) - zeros_before
    pruned = {f"{n}.weight": share for n, share in zero_shares(module).items() if n not in effect.kept}
    assert all(share == pytest.approx(0.6, abs=0.001) for share in pruned.values())
    for name, tensor in module.state_dict().items():
        if name not in pruned:
            assert torch.equal(tensor, before[name]), name
            continue
        gone = tensor == 0
        assert torch.equal(tensor[~gone], before[name][~gone])
        assert before[name][gone].abs().max() <= before[name][~gone].abs().min()


def test_global_magnitude_compares_all_layers(tmp_path: Path) -> None:
    module = bert()
    with torch.no_grad():
        module.bert.encoder.layer[0].intermediate.dense.weight.mul_(0.001)
    module, effect = PruneMagnitude(amount=0.2, scope="global").apply_torch(
        module, context(tmp_path, "text-classification")
    )
    shares = zero_shares(module)
    assert shares["bert.encoder.layer.0.intermediate.dense"] == 1.0
    assert "bert.encoder.layer.0.intermediate.dense lost at least 99 % of the weights" in effect.warnings
    assert effect.summary.startswith("20.0% of the weights in ")


def test_fc_081_wanda_prunes_linear_weights_only(tmp_path: Path) -> None:
    module = distilbert()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    ctx = calibrating(tmp_path, "text-classification", texts=("w1 w2 w3", "w4 w5", "w6 w7 w8 w9", "w3 w1"))
    module, effect = PruneWanda(amount=0.6).apply_torch(module, ctx)
    assert (effect.changed, effect.of) == (12, 14)
    changed = {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {f"{name}.weight" for name in zero_shares(module) if "transformer.layer" in name}
    for name in changed:
        assert float((module.state_dict()[name] == 0).float().mean()) == pytest.approx(0.6, abs=0.01)


def test_wanda_judges_within_each_row_by_weight_times_input_norm(tmp_path: Path) -> None:
    module = llama()
    ctx = calibrating(tmp_path, "text-generation")
    before, statistics = weights_of(module), input_statistics(module, ctx)
    module, effect = PruneWanda(amount=0.5).apply_torch(module, ctx)
    name = "model.layers.1.mlp.down_proj"
    scores = before[name].abs() * statistics[name].norm
    expected = scores < scores.median(dim=1, keepdim=True).values
    got = module.get_submodule(name).weight == 0
    assert (got.sum(dim=1) == 32).all()
    assert (got & expected).sum() == expected.sum()
    assert torch.equal(module.get_submodule(name).weight[~got], before[name][~got])
    assert "shares its tensor with model.embed_tokens.weight" in effect.kept["lm_head"]


@pytest.mark.parametrize("step", [PruneWanda(amount=0.5), PruneSparseGPT(amount=0.5), Prune24(importance="wanda")])
def test_fc_013_gpt2s_conv1d_projections_are_pruned_along_their_inputs(step: Technique, tmp_path: Path) -> None:
    module = gpt2()
    layer = module.transformer.h[0].mlp.c_fc
    assert type(layer).__name__ == "Conv1D"
    module, effect = step.apply_torch(module, calibrating(tmp_path, "text-generation"))
    assert (effect.changed, effect.of) == (8, 9)
    assert float((layer.weight == 0).float().mean()) == pytest.approx(0.5, abs=0.001)
    if not isinstance(step, PruneSparseGPT):  # it counts over a block of columns, the others within each output
        assert ((layer.weight == 0).sum(dim=0) == 16).all()


def test_sparsegpt_leaves_a_smaller_output_error_than_wanda_and_magnitude() -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 64) @ torch.randn(64, 64) * torch.rand(64) * 5  # correlated, of unlike sizes
    weight = torch.randn(48, 64)
    moment = x.t() @ x / len(x)
    factor = inverse_factor(moment, 0.01)
    assert factor is not None
    solved = sparsegpt(weight, factor, 0.5, 32)
    assert float((solved == 0).float().mean()) == 0.5
    wanda = weight.masked_fill(smallest_of_rows(weight.abs() * x.norm(dim=0), 32), 0)
    magnitude = weight.masked_fill(smallest(weight.abs(), weight.numel() // 2), 0)
    errors = [float(((weight - w) @ x.t()).norm()) for w in (solved, wanda, magnitude)]
    assert errors[0] < 0.9 * errors[1]
    assert errors[1] < errors[2]


def test_sparsegpts_correction_is_the_least_squares_one() -> None:
    torch.manual_seed(1)
    x = torch.randn(50, 3, dtype=torch.float64) @ torch.randn(3, 3, dtype=torch.float64)
    weight = torch.tensor([[0.01, 1.0, -2.0]])  # the first column goes (a third of three)
    factor = inverse_factor((x.t() @ x / len(x)).float(), 1e-6)
    assert factor is not None
    solved = sparsegpt(weight, factor, 1 / 3, 3)
    best = torch.linalg.lstsq(x[:, 1:], x @ weight.double().t()).solution.t()
    assert (solved == 0).tolist() == [[True, False, False]]
    assert torch.allclose(solved[:, 1:].double(), best, atol=1e-3)


def test_fc_017_degenerate_rows_and_dead_channels_give_no_nan(tmp_path: Path) -> None:
    module = llama(tie_word_embeddings=False)
    with torch.no_grad():
        module.model.embed_tokens.weight[:, 5] = 0
    ctx = calibrating(tmp_path, "text-generation", texts=(" ".join(["w3"] * 40),) * 2)
    module, effect = PruneSparseGPT(amount=0.5, samples=2).apply_torch(module, ctx)
    assert all(bool(p.isfinite().all()) for p in module.parameters())
    shares = [share for name, share in zero_shares(module).items() if name not in effect.kept]
    assert shares == pytest.approx([0.5] * 14, abs=0.001)
    words = "; ".join(effect.warnings)
    assert "Hessians damped by 0.01 of their mean diagonal" in effect.summary
    assert "1 input channels were always 0 on the calibration rows, first in model.layers.0.self_attn.q_proj" in words
    assert bool((module.model.layers[0].self_attn.q_proj.weight[:, 5] == 0).all())


def test_fc_017_a_hessian_that_cannot_be_inverted_names_its_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.parts.sparsegpt.LARGEST_DAMPING", 0.0)  # nothing helps any more
    _, effect = PruneSparseGPT(amount=0.5).apply_torch(llama(), calibrating(tmp_path, "text-generation"))
    assert any("q_proj" in w and "could not be inverted, pruned by magnitude instead" in w for w in effect.warnings)
    assert effect.changed == 14


def test_a_singular_hessian_is_damped_more_and_says_so() -> None:
    moment = torch.full((4, 4), 1.0)
    moment[0, 0] = 1 - 0.02  # indefinite: only more damping makes it invertible
    factor = inverse_factor(moment, 0.001)
    assert factor is not None
    assert factor.damping >= 0.01


def test_two_of_four_holds_in_every_group_along_the_inputs(tmp_path: Path) -> None:
    module, effect = Prune24().apply_torch(llama(), context(tmp_path, "text-generation"))
    for name, weight in weights_of(module).items():
        if name not in effect.kept:
            assert ((weight.reshape(-1, 4) == 0).sum(dim=1) == 2).all(), name
    assert effect.label is None
    assert Prune24.label is Label.MASKED_SPARSE


def test_two_of_four_names_the_layer_that_four_does_not_divide(tmp_path: Path) -> None:
    module = qwen2(intermediate_size=66)
    with pytest.raises(ExperimentError, match=r"down_proj has 66 inputs, which four does not divide") as caught:
        Prune24().apply_torch(module, context(tmp_path, "text-generation"))
    assert caught.value.failure.kind is FailureKind.UNSUPPORTED
    Prune24(keep=("*.down_proj",)).apply_torch(qwen2(intermediate_size=66), context(tmp_path, "text-generation"))


def test_layers_are_kept_by_name_and_a_typo_shows_the_real_names(tmp_path: Path) -> None:
    _, effect = PruneMagnitude(keep=("layer.0.*",)).apply_torch(bert(), context(tmp_path, "text-classification"))
    assert effect.changed == 6
    with pytest.raises(ExperimentError, match="'atention' in keep matches none of the 14 linear layers") as caught:
        PruneMagnitude(keep=("atention",)).apply_torch(bert(), context(tmp_path, "text-classification"))
    assert "bert.encoder.layer.0.attention.self.query" in (caught.value.failure.fix or "")


def test_pruning_twice_by_the_same_amount_is_no_effect(tmp_path: Path) -> None:
    module, _ = PruneMagnitude(amount=0.5).apply_torch(bert(), context(tmp_path, "text-classification"))
    with pytest.raises(ExperimentError, match="as many weights were zero before") as caught:
        PruneMagnitude(amount=0.5).apply_torch(module, context(tmp_path, "text-classification"))
    assert caught.value.failure.kind is FailureKind.NO_EFFECT


@pytest.mark.parametrize("amount", [0, 1, -0.1, 1.5])
def test_an_amount_outside_0_to_1_is_refused(amount: float) -> None:
    for step in (PruneMagnitude, PruneWanda, PruneSparseGPT):
        with pytest.raises(ValidationError, match="amount"):
            step(amount=amount)


def test_quantized_models_are_refused_and_calibration_rows_are_asked_for(tmp_path: Path) -> None:
    facts = ModelFacts("m", "llama", (), "text-generation", 0, "int8", 0, quantized="gptq")
    asked = Ask(task="text-generation", device="cpu", runtime=TorchEager(), model=facts)
    for step in (PruneMagnitude(), PruneWanda(), PruneSparseGPT(), Prune24()):
        assert "choose its unquantized original" in (step.refuse(asked) or "")
    assert PruneWanda().needs() == PruneSparseGPT().needs() == Prune24(importance="wanda").needs() == {"calibration"}
    assert PruneMagnitude().needs() == Prune24().needs() == frozenset()
    with pytest.raises(ExperimentError, match="there are no calibration rows"):
        PruneWanda().apply_torch(bert(), context(tmp_path, "text-classification"))


def test_a_mask_says_why_it_is_neither_smaller_nor_faster(tmp_path: Path) -> None:
    _, effect = PruneMagnitude().apply_torch(bert(), context(tmp_path, "text-classification"))
    report = Report(experiment="x", baseline="b", task="t", spec={}, status="succeeded", effects=(effect,))
    assert "stored as wide as other weights" in (PruneMagnitude().shortfall("size", report) or "")
    assert "No sparse kernel runs here" in (PruneMagnitude().shortfall("latency", report) or "")


def test_zeros_survive_symmetric_int8(tmp_path: Path) -> None:
    ctx = context(tmp_path, "text-classification")
    module, _ = PruneMagnitude(amount=0.5).apply_torch(bert(), ctx)
    zeros = {name: weight == 0 for name, weight in weights_of(module).items()}
    module, _ = Int8Dynamic().apply_torch(module, ctx)
    for name, zero in zeros.items():
        codes = module.get_submodule(name).saved()["weight_int8"]
        assert bool((codes[zero] == 0).all()), name


def test_packed_two_of_four_layers_store_half_and_reload_equal_anywhere(tmp_path: Path) -> None:
    ctx, inputs = context(tmp_path, "text-generation"), inputs_for("text-generation")
    module, effect = Prune24().apply_torch(qwen2(hidden_size=64), ctx)
    masked, before = outputs_of(module, "text-generation", inputs), parameter_count(module)
    wide = {name: weight.half() for name, weight in weights_of(module).items()}
    module, effect = pack_layers(module, (), effect)
    layers = packed_layers(module)
    assert effect.label is Label.PACKED
    assert len(layers) == effect.changed == 14
    assert "14 layers packed in float16 for the sparse kernel" in effect.summary
    for name, layer in layers.items():
        assert torch.equal(layer.dense(), wide[name]), name
        stored = wide[name].numel() * 9 // 8 + (0 if layer.bias is None else 2 * layer.out_features)
        assert layer.packed_bytes() == stored
    assert parameter_count(module) == before
    packed = outputs_of(module, "text-generation", inputs)
    assert np.abs(packed - masked).max() < 5e-3 * np.abs(masked).max()
    (tmp_path / "a").mkdir()
    TorchEager().save(module, tmp_path / "a", ctx, ())
    assert np.array_equal(outputs_of(load_module(tmp_path / "a", "cpu"), "text-generation", inputs), packed)


def test_layers_of_other_shapes_stay_masks_by_name(tmp_path: Path) -> None:
    module, effect = Prune24().apply_torch(llama(), context(tmp_path, "text-generation"))  # 32 inputs, but down_proj
    module, packed = pack_layers(module, (), effect)
    assert len(packed_layers(module)) == 2
    assert packed.warnings[0].startswith("model.layers.0.mlp.gate_proj, model.layers.0.mlp.up_proj, ")
    assert packed.warnings[0].endswith("masked, the kernel takes multiples of 32 x 64")
    assert packed.zeros == zero_weights(module)


def test_what_is_packed_for_a_kernel_ends_the_recipe_and_is_never_exported() -> None:
    def refused(step: Prune24, device: DeviceKind, runtime: Runtime, recipe: tuple[Technique, ...]) -> str:
        return step.refuse(Ask(task="text-generation", device=device, runtime=runtime, recipe=recipe)) or ""

    then = (Prune24(), Int8Dynamic())
    assert "end the recipe with a second prune-2-4" in refused(Prune24(), "cuda", TorchEager(), then)
    assert "set pack to false" in refused(Prune24(), "cuda", OnnxRuntime(), (Prune24(),))
    assert refused(Prune24(), "cuda", TorchEager(), (Prune24(pack=False), Prune24())) == ""
    assert refused(Prune24(), "cpu", OnnxRuntime(), then) == ""
