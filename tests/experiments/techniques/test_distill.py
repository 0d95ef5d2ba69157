"""Distillation: the student is smaller, starts as its teacher's layers, learns its answers, and loads anywhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from experiments.parts.distillation import Lesson, soft_loss
from experiments.parts.narrowing import narrowed
from experiments.parts.tied_weights import parameter_count
from experiments.protocols import Ask, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.distill import Distill
from tests.experiments.building import bert, context, gpt2, in_fresh_process, inputs_for, llama, outputs_of, vit
from tests.experiments.techniques.training import training

STEP = Distill(layers=1, steps=12, learning_rate=2e-3, batch_size=16, max_length=16, hidden_weight=1.0)


def features() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
    return BertModel(BertConfig(vocab_size=200, hidden_size=32, **shape), add_pooling_layer=False).eval()


@pytest.mark.parametrize(
    ("make", "task", "width"),
    [
        (bert, "text-classification", 1.0),
        (bert, "text-classification", 0.5),
        (vit, "image-classification", 1.0),
        (vit, "image-classification", 0.5),
        (llama, "text-generation", 1.0),
        (llama, "text-generation", 0.5),
        (gpt2, "text-generation", 1.0),
        (gpt2, "text-generation", 0.5),
        (features, "feature-extraction", 1.0),  # narrower features are refused: they have no common space
    ],
)
def test_a_student_learns_the_teachers_answers(make: Any, task: Task, width: float, tmp_path: Path) -> None:
    teacher = make()
    step = STEP.model_copy(update={"width": width})
    student, effect = step.apply_torch(make(), training(tmp_path, task))
    assert (effect.changed, effect.of) == (1, 2)
    assert effect.removed == parameter_count(teacher) - parameter_count(student) > 0
    assert effect.losses[-1][1] < effect.losses[0][1]
    config = student.config
    assert (config.num_hidden_layers, config.hidden_size) == (1, 32 * width)
    student.save_pretrained(tmp_path / "student")
    again, info = type(student).from_pretrained(tmp_path / "student", output_loading_info=True)
    missing = [name for name in info["missing_keys"] if not name.startswith("pooler.")]  # features do without it
    assert not missing and not info["unexpected_keys"] and not info["mismatched_keys"]
    inputs = inputs_for(task)
    assert np.array_equal(outputs_of(again, task, inputs), outputs_of(student, task, inputs))


def test_a_student_of_fewer_layers_starts_as_its_teachers_layers(tmp_path: Path) -> None:
    teacher = bert()
    step = Distill(layers=(1,), steps=1, learning_rate=1e-9, weight_decay=0.0, batch_size=16)
    student, effect = step.apply_torch(bert(), training(tmp_path, "text-classification"))
    mine, theirs = student.bert.encoder.layer[0].state_dict(), teacher.bert.encoder.layer[1].state_dict()
    assert all(torch.allclose(mine[name], theirs[name], atol=1e-7) for name in theirs)
    assert effect.summary.startswith("student of layers 1 of 2: ")


def test_a_narrow_student_keeps_the_largest_neurons_heads_and_dimensions() -> None:
    teacher = llama(tie_word_embeddings=False)
    with torch.no_grad():
        for name, p in teacher.named_parameters():
            p.zero_()
            if name.endswith("norm.weight"):
                p.fill_(1)
        big = torch.arange(32) % 2 == 1
        teacher.model.embed_tokens.weight[:, big] = 1.0  # odd dimensions matter
        block = teacher.model.layers[0]
        block.mlp.up_proj.weight[10:42] = 1.0  # neurons 10 to 41 matter
        block.self_attn.v_proj.weight[8:] = 3.0  # the second key-value head and its two heads matter
        block.self_attn.o_proj.weight[:, 16:] = 2.0
    student = narrowed(teacher, 0.5).module
    block = student.model.layers[0]
    assert (student.model.embed_tokens.weight == 1).all()
    assert (block.mlp.up_proj.weight == 1).all() and tuple(block.mlp.up_proj.weight.shape) == (32, 16)
    assert (block.self_attn.v_proj.weight == 3).all() and tuple(block.self_attn.v_proj.weight.shape) == (8, 16)
    assert (block.self_attn.o_proj.weight == 2).all()
    config = student.config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (2, 1, 8)


def test_gpt2s_fused_projection_is_cut_in_each_of_its_three_parts() -> None:
    teacher = gpt2()
    fused = teacher.transformer.h[0].attn.c_attn
    with torch.no_grad():
        for number in range(4):
            strong = 10.0 if number in (1, 3) else 0.1
            for part in range(3):
                fused.weight[:, part * 32 + number * 8 : part * 32 + number * 8 + 8] = strong + part
    cut = narrowed(teacher, 0.5).module.transformer.h[0].attn.c_attn
    assert tuple(cut.weight.shape) == (16, 48)
    assert [float(cut.weight[0, part * 16].detach()) for part in range(3)] == [10.0, 11.0, 12.0]
    assert bool((cut.weight.reshape(16, 3, 16) == torch.tensor([10.0, 11.0, 12.0])[None, :, None]).all())


@pytest.mark.parametrize(("teacher_width", "student_width"), [(160, 152), (152, 160)])
def test_fc_025_columns_beyond_the_tokenizer_are_cut_on_both_sides(
    teacher_width: int, student_width: int, tmp_path: Path
) -> None:
    teacher, student = llama(vocab_size=teacher_width), llama(vocab_size=student_width)
    here = training(tmp_path, "text-generation")  # a tokenizer of 12 words
    lesson = Lesson(teacher, STEP.model_copy(update={"alpha": 1.0, "hidden_weight": 0.0}), here, (0, 1), labelled=True)
    batch = {"input_ids": torch.randint(0, 12, (2, 8), generator=torch.Generator().manual_seed(0))}
    learner, losses = lesson.learner(student), []
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3)
    for _ in range(2):
        loss = lesson.loss(learner, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(math.isfinite(loss) for loss in losses)
    assert lesson.warnings == (
        f"columns beyond the tokenizer's 12 were cut ({teacher_width} and {student_width}) and probabilities "
        "renormalised",
    )
    from experiments.stats import logits_divergence

    with torch.no_grad():
        p, q = (model(**batch).logits[..., :12].reshape(-1, 12) for model in (teacher, student))
    assert float(soft_loss(p, q, 1.0)) == pytest.approx(float(logits_divergence(p.numpy(), q.numpy()).kl.mean()), 1e-4)


def test_soft_answers_are_compared_as_hinton_says() -> None:
    teacher, student = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.5, 0.5, 0.0]])
    p, q = torch.softmax(teacher / 3, -1), torch.softmax(student / 3, -1)
    assert float(soft_loss(teacher, student, 3.0)) == pytest.approx(9 * float((p * (p / q).log()).sum()), 1e-5)
    assert float(soft_loss(teacher, teacher, 3.0)) == pytest.approx(0, abs=1e-6)


def test_a_student_is_never_as_large_as_its_teacher(tmp_path: Path) -> None:
    facts = ModelFacts("tiny", "bert", (), "text-classification", 0, "float32", 0, layers=2, heads=4, hidden_size=32)

    def refused(step: Distill, task: Task = "text-classification") -> str:
        return step.refuse(Ask(task=task, device="cpu", runtime=TorchEager(), model=facts)) or ""

    assert "larger than its teacher: 3 layers, the model has 2" in refused(Distill(layers=3))
    assert "it asks for layer 2, the last one is 1" in refused(Distill(layers=(0, 2)))
    assert "as large as its teacher" in refused(Distill(layers=2))
    assert refused(Distill(layers=2, width=0.5)) == refused(Distill()) == ""
    assert "choose fewer layers" in refused(Distill(width=0.5), "feature-extraction")
    with pytest.raises(ExperimentError, match="larger than its teacher") as caught:
        STEP.model_copy(update={"layers": 9}).apply_torch(bert(), training(tmp_path, "text-classification"))
    assert caught.value.failure.kind is FailureKind.UNSUPPORTED
    with pytest.raises(ExperimentError, match="leaves all 4 heads"):
        narrowed(bert(), 0.95)
    assert Distill().valid(facts) == {"layers": {"min": 1, "max": 1}, "width": [0.25, 0.5, 0.75, 1.0]}
    for wrong in (0, (1, 0), (0, 0), ()):
        with pytest.raises(ValidationError):
            Distill(layers=wrong)


def test_rows_without_labels_teach_by_the_teacher_alone(tmp_path: Path) -> None:
    from dataclasses import replace

    from tests.experiments.techniques.training import reviews

    unlabelled = replace(reviews(), labels=None)
    _, effect = STEP.apply_torch(bert(), training(tmp_path, "text-classification", unlabelled))
    assert "at temperature 2 alone (rows have no labels)" in effect.summary


def test_a_saved_student_answers_alike_in_a_fresh_process(tmp_path: Path) -> None:
    inputs = inputs_for("text-generation")
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **inputs)
    step = STEP.model_copy(update={"width": 0.5, "steps": 2})
    student, _ = step.apply_torch(llama(), training(tmp_path, "text-generation"))
    TorchEager().save(student, tmp_path / "artifact", context(tmp_path, "text-generation"), ())
    in_fresh_process(
        """
        from pathlib import Path
        import numpy as np, torch
        from transformers import AutoModelForCausalLM
        folder = Path(values["folder"])
        model = AutoModelForCausalLM.from_pretrained(folder / "artifact").eval()
        with torch.inference_mode():
            logits = model(**{k: torch.from_numpy(v) for k, v in dict(np.load(folder / "inputs.npz")).items()}).logits
        np.save(folder / "answer.npy", logits.numpy())
        answer = 1
        """,
        folder=str(tmp_path),
    )
    expected = outputs_of(student, "text-generation", inputs)
    assert np.abs(np.load(tmp_path / "answer.npy") - expected).max() <= 1e-5
