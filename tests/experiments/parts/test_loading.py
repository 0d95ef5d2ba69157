"""What is loaded is what is in the file, for every weight, or it is not loaded at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.parts.loading import load_module, load_tokenizer
from experiments.parts.padding import padding_of
from experiments.parts.tied_weights import parameter_count, tied_names, unique_bytes
from experiments.parts.weights import nonfinite_tensors
from experiments.records import ExperimentError, FailureKind
from tests.experiments.parts.small_models import classifier, gpt2, llama, logits, rewrite
from tests.experiments.tiny_models import tiny_classifier, tokenizer_of


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named_and_counted(tmp_path: Path, value: float) -> None:
    """FC-005."""
    llama(tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"

    def spoil(tensors: dict[str, Any]) -> None:
        tensors[name][3, 4] = value

    rewrite(tmp_path / "model.safetensors", spoil)
    assert nonfinite_tensors(tmp_path) == {name: 1}
    with pytest.raises(ExperimentError, match=f"{name} has 1 NaN or infinite values") as caught:
        load_module(tmp_path, "text-generation")
    assert caught.value.failure.kind is FailureKind.BAD_MODEL


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_non_finite_values_are_found_in_every_type(tmp_path: Path, dtype: torch.dtype) -> None:
    """FC-005."""
    from safetensors.torch import save_file

    values = torch.ones(1000)
    values[::100] = float("nan")
    values[5] = float("inf")
    limits = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
    tensors = {"bad": values.to(dtype), "large": limits, "none": torch.zeros(0, dtype=dtype)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert nonfinite_tensors(tmp_path) == {"bad": 11}


def test_a_class_that_forgets_its_weights_is_caught(tmp_path: Path) -> None:
    """FC-065: no key is reported missing, and still the weights are not the file's."""
    from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

    class ForgetfulConfig(PretrainedConfig):
        model_type = "forgetful"

        def __init__(self, forget: bool = False, **rest: Any) -> None:
            super().__init__(**rest)
            self.forget = forget

    class Forgetful(PreTrainedModel):
        config_class = ForgetfulConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))
            self.post_init()

        @classmethod
        def from_pretrained(cls, *args: Any, **options: Any) -> Any:
            loaded = super().from_pretrained(*args, **options)
            model = loaded[0] if isinstance(loaded, tuple) else loaded
            if model.config.forget:
                torch.nn.init.normal_(model.layers[1].weight)
            return loaded

    AutoConfig.register("forgetful", ForgetfulConfig)
    AutoModel.register(ForgetfulConfig, Forgetful)
    for forget in (False, True):
        folder = tmp_path / str(forget)
        Forgetful(ForgetfulConfig(forget=forget)).save_pretrained(folder)
        if forget:
            with pytest.raises(ExperimentError, match=r"layers\.1\.weight does not hold the file's values"):
                load_module(folder, "feature-extraction")
        else:
            assert parameter_count(load_module(folder, "feature-extraction")) == 3 * (16 * 16 + 16)


def test_sizes_that_config_contradicts_are_refused(tmp_path: Path) -> None:
    classifier(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(ExperimentError, match=r"another shape than config\.json says"):
        load_module(tmp_path, "text-classification")


def test_a_missing_head_is_never_made_up(tmp_path: Path) -> None:
    classifier(tmp_path)

    def behead(tensors: dict[str, Any]) -> None:
        del tensors["classifier.weight"]

    rewrite(tmp_path / "model.safetensors", behead)
    with pytest.raises(ExperimentError, match=r"1 are not in the file and would be random, first classifier\.weight"):
        load_module(tmp_path, "text-classification")


def test_weights_that_fit_nowhere_are_refused(tmp_path: Path) -> None:
    classifier(tmp_path)
    rewrite(tmp_path / "model.safetensors", lambda tensors: tensors.update(extra=torch.ones(3)))
    with pytest.raises(ExperimentError, match="fit nowhere, first extra"):
        load_module(tmp_path, "text-classification")


def test_features_of_a_classifier_need_no_head(tmp_path: Path) -> None:
    classifier(tmp_path)
    module = load_module(tmp_path, "feature-extraction")
    assert type(module).__name__ == "BertModel" and not module.training


def test_a_task_without_trained_weights_is_refused(tmp_path: Path) -> None:
    classifier(tmp_path)
    with pytest.raises(ExperimentError, match="BertForSequenceClassification has no weights for text-generation"):
        load_module(tmp_path, "text-generation")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_stored_type_is_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    llama(tmp_path).to(dtype).save_pretrained(tmp_path)
    assert next(load_module(tmp_path, "text-generation").parameters()).dtype is dtype


def test_ties_survive_loading_and_are_counted_once(tmp_path: Path) -> None:
    original = llama(tmp_path, tied=True)
    module = load_module(tmp_path, "text-generation")
    assert tied_names(module) == {"model.embed_tokens.weight": "lm_head.weight"}
    assert parameter_count(module) == sum(p.numel() for p in original.parameters())
    assert unique_bytes(module) >= 4 * parameter_count(module)
    assert (logits(module) == logits(original)).all()


def test_a_classifier_without_padding_token_gives_the_same_logits_in_every_batch(tmp_path: Path) -> None:
    """FC-037: the missing token is filled in, stated, and hidden by the mask."""
    from tokenizers import Tokenizer
    from transformers import GPT2Config, GPT2ForSequenceClassification

    words = [f"w{i}" for i in range(50)]
    size = tokenizer_of(tmp_path, words, special=False)
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps({"eos_token": "[SEP]"}))
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=64, num_labels=3)
    config.bos_token_id = config.eos_token_id = 2
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    vocabulary = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab()
    assert "no padding token" in (padding_of(tmp_path, vocabulary).note or "")
    module, tokenizer = load_module(tmp_path, "text-classification"), load_tokenizer(tmp_path)
    texts = [" ".join(words[:n]) for n in (5, 40, 1, 17)]
    batch = tokenizer.encode_batch(texts)
    with torch.inference_mode():
        together = module(
            input_ids=torch.tensor([e.ids for e in batch]),
            attention_mask=torch.tensor([e.attention_mask for e in batch]),
        ).logits
        alone = torch.cat([module(input_ids=torch.tensor([tokenizer.encode(t).ids])).logits for t in texts])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_a_named_padding_token_is_used(tmp_path: Path) -> None:
    tiny_classifier(tmp_path, ["good", "bad"], ["neg", "pos"])
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.padding["pad_id"] == 0 and tokenizer.padding["pad_token"] == "[PAD]"
    assert tokenizer.truncation is None


def test_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    gpt2(tmp_path)
    with pytest.raises(ExperimentError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ExperimentError, match="can't be read"):
        load_tokenizer(tmp_path)


def test_features_of_a_masked_model_have_no_made_up_pooler(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    module = load_module(tmp_path, "feature-extraction")
    assert module.pooler is None and not [name for name in module.state_dict() if "pooler" in name]
    with torch.inference_mode():
        assert module(input_ids=torch.tensor([[1, 2, 3]])).last_hidden_state.shape == (1, 3, 32)


def test_stored_attention_masks_are_neither_parameters_nor_faults(tmp_path: Path) -> None:
    from experiments.parts.model_facts import facts_of_folder

    model = gpt2(tmp_path)
    mask = torch.full((1, 1, 8, 8), float("-inf"))
    rewrite(tmp_path / "model.safetensors", lambda t: t.update({"transformer.h.0.attn.bias": mask}))
    assert nonfinite_tensors(tmp_path) == {}
    assert facts_of_folder(tmp_path).parameters == parameter_count(model)
