"""Fine-tuning lowers the loss, keeps zeros zero, and learns to live with rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import catalog
from experiments.parts.checkpoints import Checkpoints
from experiments.parts.quantizer import Quantizer
from experiments.parts.recipe import plan
from experiments.protocols import Ask, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.finetune import Finetune
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments.building import bert, gpt2, llama, vit
from tests.experiments.techniques.training import reviews, training

STEP = Finetune(steps=12, learning_rate=3e-3, batch_size=16, max_length=16)


def state(module: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


@pytest.mark.parametrize(
    ("make", "task"),
    [
        (bert, "text-classification"),
        (vit, "image-classification"),
        (llama, "text-generation"),
        (gpt2, "text-generation"),
    ],
)
def test_it_learns_the_training_rows(make: Any, task: Task, tmp_path: Path) -> None:
    told: list[tuple[float, str, float | None]] = []
    context = training(tmp_path, task, progress=lambda f, m="", s=None: told.append((f, m, s)))
    module, effect = STEP.apply_torch(make(), context)
    assert effect.losses[0][0] == 1 and effect.losses[-1][0] == 12
    assert effect.losses[-1][1] < effect.losses[0][1]
    assert effect.changed > 0.8 * effect.of
    assert "12 steps of 16 out of" in effect.summary
    assert not module.training and all(p.requires_grad for p in module.parameters())
    fraction, message, left = told[-1]
    assert (fraction, left) == (1.0, 0.0) and message.startswith("finetune: step 12 of 12, loss ")


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    made = [state(STEP.apply_torch(bert(), training(tmp_path, "text-classification"))[0]) for _ in range(2)]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    other = state(STEP.apply_torch(bert(), training(tmp_path, "text-classification", seed=1))[0])
    assert any(not torch.equal(made[0][name], other[name]) for name in other)


def test_zeros_of_a_pruned_model_stay_zeros(tmp_path: Path) -> None:
    module = bert()
    with torch.no_grad():
        for layer in (m for m in module.bert.encoder.modules() if isinstance(m, torch.nn.Linear)):
            layer.weight[:, ::2] = 0
    zeros = {name: p == 0 for name, p in state(module).items() if p.ndim > 1}
    module, effect = STEP.apply_torch(module, training(tmp_path, "text-classification", masked=True))
    held = sum(int(mask.sum()) for mask in zeros.values())
    assert held >= 8192 and f"{held:,} zeros held" in effect.summary
    assert all(bool((state(module)[name][mask] == 0).all()) for name, mask in zeros.items())


def test_training_through_a_quantizer_lowers_the_loss_of_the_quantized_model(tmp_path: Path) -> None:
    coarse = Int8Dynamic(per_channel=False, keep=("classifier",))
    context = training(tmp_path, "text-classification", through=coarse)
    module, effect = STEP.apply_torch(bert(), context)
    assert "through the rounding of int8-dynamic in 13 linear layers" in effect.summary
    assert all(type(m).__name__ != "RoundedLinear" for m in module.modules()), "the layers are put back"
    assert effect.losses[-1][1] < effect.losses[0][1]  # of the rounded model, since it is what computes
    _, after = coarse.apply_torch(module, context)
    assert (after.changed, list(after.kept)) == (13, ["classifier"])


def test_written_after_a_quantizer_it_is_applied_before_it_and_told_so() -> None:
    quantizer = Int8Dynamic()
    planned = plan((quantizer, STEP), TorchEager())
    assert not isinstance(planned, str)
    assert planned.torch == (STEP, quantizer) and planned.through == {0: quantizer}


def test_a_tied_head_is_trained_exact_when_its_quantizer_leaves_it_so(tmp_path: Path) -> None:
    context = training(tmp_path, "text-generation", through=Int8Dynamic())
    module, effect = STEP.apply_torch(llama(), context)
    assert "in 14 linear layers" in effect.summary
    assert module.lm_head.weight is module.model.embed_tokens.weight


def test_a_narrow_model_is_trained_wide_and_rounded_back(tmp_path: Path) -> None:
    module, effect = STEP.apply_torch(bert().to(torch.bfloat16), training(tmp_path, "text-classification"))
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert effect.warnings == ("trained in float32, then rounded back to bfloat16",)


def test_a_rate_that_ruins_the_model_ends_with_the_step(tmp_path: Path) -> None:
    module = bert()
    with torch.no_grad():
        module.classifier.weight.fill_(3e38)
    with pytest.raises(ExperimentError, match=r"became (nan|inf) at step 1 of 12") as caught:
        STEP.apply_torch(module, training(tmp_path, "text-classification"))
    assert caught.value.failure.kind is FailureKind.CANARY


def test_rows_without_labels_or_too_few_are_refused_by_name(tmp_path: Path) -> None:
    from dataclasses import replace

    unlabelled = replace(reviews(), labels=None)
    with pytest.raises(ExperimentError, match="no labels, which finetune learns"):
        STEP.apply_torch(bert(), training(tmp_path, "text-classification", unlabelled))
    with pytest.raises(ExperimentError, match="8 rows to learn from, fewer than one batch of 16") as caught:
        STEP.apply_torch(bert(), training(tmp_path, "text-classification", reviews(8)))
    assert caught.value.failure.field == "dataset.train_split"


def test_features_quantized_weights_and_long_rows_are_refused_at_submission() -> None:
    def ask(task: Task, **facts: Any) -> Ask:
        model = ModelFacts("tiny", "bert", (), task, 0, "float32", 0, **facts)
        return Ask(task=task, device="cpu", runtime=TorchEager(), model=model)

    assert "choose distill" in (STEP.refuse(ask("feature-extraction")) or "")
    assert "already quantized (gptq)" in (STEP.refuse(ask("text-generation", quantized="gptq")) or "")
    assert "more than the 8 tokens" in (STEP.refuse(ask("text-classification", max_length=8)) or "")
    assert STEP.refuse(ask("text-classification", max_length=512)) is None
    assert STEP.needs() == {"train"}


QUANTIZERS = [c for c in catalog.plugins("technique").values() if issubclass(c, Quantizer) and "cpu" in c.devices]


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda c: c.model_fields["technique"].default)
def test_every_quantizers_rounding_can_be_learnt(quantizer: Any, tmp_path: Path) -> None:
    step = STEP.model_copy(update={"steps": 2})
    context = training(tmp_path, "text-classification", through=quantizer())
    before = state(bert())
    module, effect = step.apply_torch(bert(), context)
    assert "through the rounding of" in effect.summary and " in 14 linear layers" in effect.summary
    weight = "bert.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(state(module)[weight], before[weight]), "gradients pass through the rounding"
    assert state(module).keys() == before.keys()


def test_a_stopped_fine_tuning_goes_on_from_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def stop(fraction: float, message: str = "", left: float | None = None) -> None:
        seen.append(message)
        if "step 7 of 12" in message:
            raise KeyboardInterrupt

    monkeypatch.setattr("experiments.parts.learning._TELL_EVERY", 0.0)
    monkeypatch.setattr(Checkpoints, "due", lambda self, step, steps: True)
    with pytest.raises(KeyboardInterrupt):
        STEP.apply_torch(bert(), training(tmp_path, "text-classification", checkpoints=tmp_path / "c", progress=stop))
    tell: dict[str, Any] = {"progress": lambda fraction, message="", left=None: seen.append(message)}
    seen.clear()
    resumed, effect = STEP.apply_torch(
        bert(), training(tmp_path, "text-classification", checkpoints=tmp_path / "c", **tell)
    )
    assert seen[0].startswith("finetune: step 7 of 12") and len(seen) == 6
    whole, expected = STEP.apply_torch(bert(), training(tmp_path, "text-classification"))
    assert effect.losses == expected.losses
    assert all(torch.equal(p, state(whole)[name]) for name, p in state(resumed).items())
