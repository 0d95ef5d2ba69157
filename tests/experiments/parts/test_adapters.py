"""Adapters: whose they are, and what several of them make together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel

from experiments.parts.adapter_check import check_adapter, fingerprint
from experiments.parts.adapter_mix import combine
from experiments.parts.adapters import hold, save_adapter, save_with_adapters, with_adapters
from experiments.records import ExperimentError, FailureKind
from tests.experiments.building import bert


def adapter(module: Any, folder: Path, **changes: Any) -> Path:
    """An adapter for ``module``, saved into ``folder``."""
    made_for = fingerprint(module.state_dict())
    config = LoraConfig(**{"r": 8, "target_modules": ["query"], "init_lora_weights": False, **changes})
    config.base_model_name_or_path = "some-base"
    model = PeftModel(module, config)
    folder.mkdir()
    save_adapter(model, "default", folder, made_for)
    return folder


def check(module: Any, folder: Path) -> tuple[str, ...]:
    return check_adapter(module, folder, "mine", fingerprint(module.state_dict()))


def wide() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=200, hidden_size=64, **shape)).eval()


def test_fc_027_an_adapter_of_another_width_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"adapter 'mine' \(trained on some-base\) does not fit: ") as caught:
        check(wide(), adapter(bert(), tmp_path / "a"))
    assert "query.lora_A is 8 x 32, 8 x 64 is expected (4 of 4 tensors differ)" in str(caught.value)
    assert caught.value.failure.kind is FailureKind.BAD_MODEL


def test_fc_027_other_weights_of_the_same_shapes_are_refused(tmp_path: Path) -> None:
    folder = adapter(bert(), tmp_path / "a")
    assert check(bert(), folder) == ()
    other = bert()
    with torch.no_grad():
        other.classifier.weight[0, 0] += 1
    with pytest.raises(ExperimentError, match="the same shapes as this one but other weights"):
        check(other, folder)
    (folder / "base.json").unlink()
    (warning,) = check(other, folder)
    assert "does not say which weights it was trained on; it names its base 'some-base'" in warning


def test_fc_027_a_config_and_a_file_of_different_ranks_are_refused(tmp_path: Path) -> None:
    folder = adapter(bert(), tmp_path / "a", r=16)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "r": 8}))
    with pytest.raises(ExperimentError, match=r"adapter_config.json says rank 8, but .* is 16 x 32 \(rank 16\)"):
        check(bert(), folder)


def test_an_adapter_for_a_layer_that_the_base_lacks_is_refused(tmp_path: Path) -> None:
    from tests.experiments.building import vit

    folder = adapter(vit(), tmp_path / "a")
    with pytest.raises(ExperimentError, match=r"it has weights for vit.encoder.*, which this base model does not have"):
        check(bert(), folder)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin0, self.lin1 = torch.nn.Linear(20, 20), torch.nn.Linear(20, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin1(torch.relu(self.lin0(x)))


def two_adapters(**first: Any) -> Any:
    torch.manual_seed(0)
    common: dict[str, Any] = {"target_modules": ["lin0", "lin1"], "init_lora_weights": False}
    model = PeftModel(Mlp(), LoraConfig(r=8, rank_pattern={"lin1": 4}, **common, **first), adapter_name="a")
    model.add_adapter("b", LoraConfig(r=8, **common))
    return model.eval()


def answer(model: Any, name: str) -> torch.Tensor:
    model.set_adapter(name)
    with torch.no_grad():
        output: torch.Tensor = model(torch.linspace(-1, 1, 60).reshape(3, 20))
    return output


@pytest.mark.parametrize("use_rslora", [False, True])
@pytest.mark.parametrize("method", ["cat", "linear"])
def test_fc_087_one_adapter_with_weight_one_is_that_adapter(use_rslora: bool, method: Any) -> None:
    model = two_adapters(use_rslora=use_rslora)
    expected = answer(model, "a")
    combine(model, {"a": 1.0}, "same", method)
    assert (answer(model, "same") - expected).abs().max() <= 1e-5


def test_fc_087_the_combined_adapter_is_the_weighted_sum_and_reloads(tmp_path: Path) -> None:
    model = two_adapters(use_rslora=True)
    combine(model, {"a": 0.5, "b": 0.5}, "both")
    for name in ("lin0", "lin1"):
        layer = getattr(model.get_base_model(), name)
        expected = (layer.get_delta_weight("a") + layer.get_delta_weight("b")) / 2
        assert torch.allclose(layer.get_delta_weight("both"), expected, atol=1e-6)
    expected = answer(model, "both")
    (tmp_path / "both").mkdir()
    torch.manual_seed(0)
    plain = Mlp()
    save_adapter(model, "both", tmp_path / "both", fingerprint(plain.state_dict()))
    again = with_adapters(plain, {"both": tmp_path / "both"})
    with torch.no_grad():
        assert torch.equal(again(torch.linspace(-1, 1, 60).reshape(3, 20)), expected)
    assert again.lin1.r == {"both": 12}


def test_fc_087_unequal_ranks_are_refused_where_they_can_not_be_added() -> None:
    with pytest.raises(ExperimentError, match="unequal ranks can't be combined by 'linear': at lin1 they are 4 and 8"):
        combine(two_adapters(), {"a": 0.5, "b": 0.5}, "both", "linear")


def test_what_is_more_than_a_low_rank_product_is_not_combined() -> None:
    model = two_adapters()
    model.add_adapter("dora", LoraConfig(r=8, target_modules=["lin0"], use_dora=True))
    with pytest.raises(ExperimentError, match="it has DoRA magnitudes"):
        combine(model, {"a": 0.5, "dora": 0.5}, "both")
    with pytest.raises(ExperimentError, match="there is no adapter 'c'; there are 'a', 'b'"):
        combine(model, {"c": 1.0}, "both")


def test_the_base_is_saved_as_if_it_had_no_adapters(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import LlamaForCausalLM

    from tests.experiments.building import llama

    plain = llama()
    model = PeftModel(llama(), LoraConfig(r=4, target_modules=["q_proj"]))
    save_with_adapters(hold(model), tmp_path)
    plain.save_pretrained(tmp_path / "plain")
    mine, expected = load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "plain" / "model.safetensors")
    assert mine.keys() == expected.keys() and all(torch.equal(mine[name], expected[name]) for name in mine)
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.model.embed_tokens.weight, "the tie survives"
