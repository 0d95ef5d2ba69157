"""LoRA: merged it is a plain model, apart it is PEFT's own adapter; what does not fit is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.parts.attention_layers import targets
from experiments.parts.recipe import plan
from experiments.parts.torch_files import load_module
from experiments.protocols import Ask, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.finetune import Finetune
from experiments.techniques.lora import Lora
from tests.experiments.building import bert, context, gpt2, in_fresh_process, inputs_for, llama, outputs_of, vit
from tests.experiments.techniques.training import training

STEP = Lora(rank=4, steps=8, learning_rate=1e-2, batch_size=16, max_length=16)


def apart(**changes: Any) -> Lora:
    return STEP.model_copy(update={"merge": False, **changes})


@pytest.mark.parametrize(
    ("make", "task", "adapted", "of"),
    [
        (bert, "text-classification", 8, 14),
        (vit, "image-classification", 8, 13),
        (llama, "text-generation", 8, 15),
        (gpt2, "text-generation", 4, 9),
    ],
)
def test_the_attentions_projections_are_adapted_and_merged(
    make: Any, task: Task, adapted: int, of: int, tmp_path: Path
) -> None:
    source = make()
    module, effect = STEP.model_copy(update={"steps": 24}).apply_torch(make(), training(tmp_path, task))
    assert (effect.changed, effect.of) == (adapted, of)
    assert effect.losses[-1][1] < effect.losses[0][1]
    assert "merged" in effect.summary and "rank 4 beside" in effect.summary
    before, after = dict(source.named_parameters()), dict(module.named_parameters())
    assert before.keys() == after.keys(), "a plain model again"
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert len(changed) == adapted and all("att" in name for name in changed)


def test_adapters_apart_open_in_a_fresh_process_by_us_and_by_peft_alone(tmp_path: Path) -> None:
    module, effect = apart().apply_torch(gpt2(), training(tmp_path, "text-generation"))
    inputs = inputs_for("text-generation")
    mine = outputs_of(module, "text-generation", inputs)
    plain = outputs_of(gpt2(), "text-generation", inputs)
    assert np.abs(mine - plain).max() > 1e-3
    TorchEager().save(module, tmp_path / "artifact", context(tmp_path, "text-generation"), ())
    files = {p.relative_to(tmp_path / "artifact").as_posix() for p in (tmp_path / "artifact").rglob("*") if p.is_file()}
    assert {"model.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"} <= files
    config = json.loads((tmp_path / "artifact/adapter/adapter_config.json").read_text())
    assert (config["fan_in_fan_out"], config["base_model_name_or_path"]) == (True, "tiny")
    assert json.loads((tmp_path / "artifact/adapter/base.json").read_text())["base"] == "tiny"
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **inputs)
    in_fresh_process(
        """
        from pathlib import Path
        import numpy as np, torch
        folder = Path(values["folder"])
        inputs = dict(np.load(folder / "inputs.npz"))
        from peft import PeftModel
        from transformers import GPT2LMHeadModel
        base = GPT2LMHeadModel.from_pretrained(folder / "artifact")
        model = PeftModel.from_pretrained(base, folder / "artifact" / "adapter").eval()
        with torch.inference_mode():
            logits = model(**{k: torch.from_numpy(v) for k, v in inputs.items()}).logits
        np.save(folder / "peft.npy", logits.numpy())
        from experiments.runtimes.torch_eager import TorchEager
        session = TorchEager().open(folder / "artifact", "cpu", 1)
        np.save(folder / "ours.npy", session.forward(inputs))
        answer = session.weights_bytes()
        """,
        folder=str(tmp_path),
    )
    for name in ("peft", "ours"):
        assert np.abs(np.load(tmp_path / f"{name}.npy") - mine).max() <= 1e-5
    assert "kept beside the base model" in effect.summary


def test_merged_and_apart_answer_alike(tmp_path: Path) -> None:
    inputs = inputs_for("text-classification")
    answers = [
        outputs_of(
            step.apply_torch(bert(), training(tmp_path, "text-classification"))[0], "text-classification", inputs
        )
        for step in (STEP, apart())
    ]
    assert np.abs(answers[0] - answers[1]).max() <= 1e-4


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        module, _ = apart().apply_torch(bert(), training(tmp_path, "text-classification"))
        TorchEager().save(module, tmp_path / name, context(tmp_path, "text-classification"), ())
    files = [p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*") if p.is_file()]
    assert all((tmp_path / "one" / p).read_bytes() == (tmp_path / "two" / p).read_bytes() for p in files)


def test_several_adapters_share_one_base_and_learn_different_rows(tmp_path: Path) -> None:
    step = apart(adapters=3)
    module, effect = step.apply_torch(bert(), training(tmp_path, "text-classification"))
    assert "3 adapters, each on its own 21 rows" in effect.summary
    assert "those of adapter-1, which is active" in effect.warnings[0]
    TorchEager().save(module, tmp_path / "artifact", context(tmp_path, "text-classification"), ())
    again = load_module(tmp_path / "artifact", "cpu")
    names = sorted(p.name for p in (tmp_path / "artifact" / "adapter").iterdir())
    assert names == ["adapter-1", "adapter-2", "adapter-3"]
    inputs = inputs_for("text-classification")
    first = outputs_of(again, "text-classification", inputs)
    assert np.abs(first - outputs_of(module, "text-classification", inputs)).max() <= 1e-6


def test_the_mean_of_several_adapters_is_what_a_merge_adds(tmp_path: Path) -> None:
    kept, _ = apart(adapters=2).apply_torch(bert(), training(tmp_path, "text-classification"))
    merged, effect = STEP.model_copy(update={"adapters": 2}).apply_torch(
        bert(), training(tmp_path, "text-classification")
    )
    layer = kept.bert.encoder.layer[0].attention.self.query
    deltas = [layer.get_delta_weight(name) for name in ("adapter-1", "adapter-2")]
    expected = layer.base_layer.weight + (deltas[0] + deltas[1]) / 2
    assert torch.allclose(merged.bert.encoder.layer[0].attention.self.query.weight, expected, atol=1e-6)
    assert effect.summary.endswith("their mean merged")


def test_a_finished_adapter_is_not_trained_again_after_a_kill(tmp_path: Path) -> None:
    seen: list[str] = []
    told = lambda fraction, message="", left=None: seen.append(message)  # noqa: E731
    step = apart(adapters=2)
    first = training(tmp_path, "text-classification", checkpoints=tmp_path / "kept", progress=told)
    one, _ = step.apply_torch(bert(), first)
    assert any("lora 1 of 2" in message for message in seen)
    seen.clear()
    two, effect = step.apply_torch(bert(), first)
    assert seen == [] and len(effect.losses) == 8
    inputs = inputs_for("text-classification")
    answers = [outputs_of(m, "text-classification", inputs) for m in (one, two)]
    assert np.array_equal(answers[0], answers[1])


def test_fc_085_a_target_that_names_nothing_is_an_error_though_others_match() -> None:
    with pytest.raises(ExperimentError, match="'q_porj' in targets matches no module; did you mean 'q_proj'") as caught:
        targets(llama(), ("v_proj", "q_porj"))
    assert "k_proj" in (caught.value.failure.fix or "")
    with pytest.raises(ExperimentError, match="'FAKE_TARGET' in targets matches no module"):
        targets(llama(), ("q_proj", "FAKE_TARGET"))
    assert [layer.name for layer in targets(llama(), ("layers.1.*.q_proj",))] == ["model.layers.1.self_attn.q_proj"]


def test_a_tied_head_is_no_target() -> None:
    with pytest.raises(ExperimentError, match="lm_head can't take an adapter: it shares its tensor"):
        targets(llama(), ("lm_head",))


def test_a_rank_above_the_layers_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"rank 20 is above the size of .*k_proj \(16 x 32\)") as caught:
        STEP.model_copy(update={"rank": 20}).apply_torch(llama(), training(tmp_path, "text-generation"))
    assert "at most 16" in (caught.value.failure.fix or "")
    facts = ModelFacts("tiny", "llama", (), "text-generation", 0, "float32", 0, hidden_size=32, heads=4, kv_heads=2)
    assert STEP.valid(facts) == {
        "rank": {"min": 1, "max": 16},
        "targets": ["q_proj", "k_proj", "v_proj", "o_proj"],
    }
    ask = Ask(task="text-generation", device="cpu", runtime=TorchEager(), model=facts)
    assert "at most 16" in (Lora(rank=20).refuse(ask) or "")


def test_adapters_apart_are_the_last_step_and_stay_in_torch() -> None:
    assert "its adapters lie beside" in str(plan((apart(), Finetune()), TorchEager()))
    assert "lora can't be exported, because" in str(plan((apart(),), OnnxRuntime()))
    assert not isinstance(plan((STEP, Finetune()), OnnxRuntime()), str)


def test_a_merge_never_fills_the_zeros_of_a_pruned_model(tmp_path: Path) -> None:
    masked = training(tmp_path, "text-classification", masked=True)
    with pytest.raises(ExperimentError, match="would fill the zeros") as caught:
        STEP.apply_torch(bert(), masked)
    assert caught.value.failure.kind is FailureKind.UNSUPPORTED
    apart().apply_torch(bert(), masked)


def test_a_model_is_plain_enough_to_be_adapted_again(tmp_path: Path) -> None:
    module, _ = STEP.apply_torch(bert(), training(tmp_path, "text-classification"))
    module, _ = STEP.apply_torch(module, training(tmp_path, "text-classification"))
    module, effect = Finetune(steps=2, batch_size=16, learning_rate=1e-3).apply_torch(
        module, training(tmp_path, "text-classification")
    )
    assert effect.changed > 0.8 * effect.of
