"""The demo models are real, and what is said of them before they are made is what they turn out to be."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.datasets.demo import DemoDataset
from experiments.models.demo import DEMO_MODELS, Demo, DemoModel
from experiments.parts import demo_vit
from experiments.parts.images import image_pixels
from experiments.parts.loading import load_module, load_tokenizer
from experiments.protocols import Host
from experiments.records import ExperimentError, FailureKind


@pytest.fixture
def shared() -> Host:
    """The cache that outlives a test, so that each demo model is made once."""
    return Host(cache=Path(os.environ["STEELYARD_CACHE"]))


@pytest.mark.slow
@pytest.mark.timeout(1800)  # training takes minutes, more on a busy machine
@pytest.mark.parametrize("demo", DEMO_MODELS, ids=lambda demo: demo.name)
def test_facts_told_before_are_the_facts_after(shared: Host, demo: Demo) -> None:
    model = DemoModel(name=demo.name)
    model.fetch(shared)
    assert model.inspect(shared) == demo.facts


@pytest.mark.slow
@pytest.mark.timeout(1800)  # training takes minutes, more on a busy machine
def test_the_review_classifier_is_right_on_unseen_snippets(shared: Host) -> None:
    import torch

    folder = DemoModel(name="minilm-reviews").fetch(shared)
    rows = DemoDataset(name="reviews").load(shared, "text-classification")
    module, tokenizer = load_module(folder, "text-classification"), load_tokenizer(folder)
    right = 0
    with torch.inference_mode():
        for start in range(0, len(rows), 64):
            batch = tokenizer.encode_batch(list(rows.texts[start : start + 64]))
            logits = module(
                input_ids=torch.tensor([e.ids for e in batch]),
                attention_mask=torch.tensor([e.attention_mask for e in batch]),
            ).logits
            named = [module.config.id2label[i] for i in logits.argmax(-1).tolist()]
            right += sum(a == b for a, b in zip(named, (rows.labels or ())[start : start + 64], strict=True))
    assert right / len(rows) >= 0.85


@pytest.mark.slow
@pytest.mark.timeout(1800)  # training takes minutes, more on a busy machine
def test_the_digit_classifier_is_right_on_unseen_digits(shared: Host) -> None:
    import torch

    folder = DemoModel(name="digits-vit").fetch(shared)
    rows = DemoDataset(name="digits").load(shared, "image-classification")
    assert rows.images is not None and rows.labels is not None
    module = load_module(folder, "image-classification")
    with torch.inference_mode():
        predicted = module(pixel_values=torch.from_numpy(image_pixels(folder, rows.images))).logits.argmax(-1)
    assert np.mean([str(int(p)) == label for p, label in zip(predicted, rows.labels, strict=True)]) >= 0.95


@pytest.mark.slow
@pytest.mark.timeout(1800)  # training takes minutes, more on a busy machine
def test_the_language_model_predicts_python_documentation(shared: Host) -> None:
    import torch

    folder = DemoModel(name="smollm2-135m").fetch(shared)
    module, tokenizer = load_module(folder, "text-generation"), load_tokenizer(folder)
    tokenizer.no_padding()
    text = "\n\n".join(DemoDataset(name="python-docs").load(shared, "text-generation").texts)
    ids = torch.tensor([tokenizer.encode(text).ids[:1024]]).reshape(2, 512)
    assert tokenizer.decode(tokenizer.encode("x  = 42\n").ids) == "x  = 42\n"
    with torch.inference_mode():
        perplexity = float(module(input_ids=ids, labels=ids).loss.exp())
    assert 5 < perplexity < 40


def test_a_demo_is_made_once_with_progress_and_a_bad_one_is_never_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, float | None]] = []
    host = Host(cache=tmp_path, tell=lambda message, fraction: told.append((message, fraction)))
    model = DemoModel(name="digits-vit")
    monkeypatch.setattr(demo_vit, "PLAN", replace(demo_vit.PLAN, steps=6))
    with pytest.raises(ExperimentError, match=r"reached only 0\.\d+ on held-out digits") as caught:
        model.fetch(host)
    assert caught.value.failure.kind is FailureKind.BAD_MODEL and model.ready(host) is None
    monkeypatch.setattr(demo_vit, "FLOOR", 0.0)
    folder = model.fetch(host)
    steps = [(message, fraction) for message, fraction in told if "step" in message]
    assert steps[-1][1] == 1.0 and "s left" in steps[-1][0] and "loss" in steps[-1][0]
    told.clear()
    assert model.fetch(host) == folder == model.ready(host) and told == []


def test_facts_are_known_before_anything_is_made(tmp_path: Path) -> None:
    for demo in DEMO_MODELS:
        model = DemoModel(name=demo.name)
        assert model.inspect(Host(cache=tmp_path)) == demo.facts and model.ready(Host(cache=tmp_path)) is None
        assert demo.summary and demo.facts.task == demo.task
