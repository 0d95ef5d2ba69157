"""Packs: the same examples and requests for every artifact of a study."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from experiments.parts.packs import FIDELITY_TOKENS, MAX_SCORED_TOKENS, Pack, class_targets, make_pack
from experiments.protocols import Examples, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind
from experiments.spec import Workload

WORDS = [f"w{i}" for i in range(100)]


def facts(**changes: object) -> ModelFacts:
    base = {
        "name": "tiny",
        "model_type": "bert",
        "architectures": ("BertForSequenceClassification",),
        "task": "text-classification",
        "parameters": 1,
        "dtype": "float32",
        "weights_bytes": 4,
        "max_length": 32,
        "vocab_size": 110,
        "labels": ("neg", "pos"),
    }
    return ModelFacts(**{**base, **changes})  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a word-level tokenizer that adds [CLS] and [SEP]."""
    folder = tmp_path / "model"
    folder.mkdir()
    vocabulary = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3} | {word: 4 + i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"pad_token_id": 0}')
    return folder


def texts(count: int, length: int = 5, seed: int = 0) -> tuple[str, ...]:
    chance = np.random.default_rng(seed)
    return tuple(" ".join(chance.choice(WORDS, size=chance.integers(1, length + 1))) for _ in range(count))


def pack(
    tmp_path: Path, model: Path, task: Task, examples: Examples | None, known: ModelFacts, length: int = 8
) -> Pack:
    folder = tmp_path / "pack"
    folder.mkdir()
    make_pack(
        folder,
        model=model,
        facts=known,
        task=task,
        examples=examples,
        workload=Workload(sequence_length=length),
        seed=0,
    )
    return Pack(folder)


def test_every_example_is_evaluated_once_and_masked(tmp_path: Path, model: Path) -> None:
    rows = texts(50)
    labels = tuple("pos" if i % 3 else "neg" for i in range(50))
    made = pack(tmp_path, model, "text-classification", Examples("x", "h", texts=rows, labels=labels), facts())
    seen: list[int] = []
    for arrays, entry in made.evaluation():
        seen += entry["rows"]
        assert set(arrays) == {"input_ids", "attention_mask", "token_type_ids"}
        for row, ids, mask in zip(entry["rows"], arrays["input_ids"], arrays["attention_mask"], strict=True):
            assert mask.sum() == min(8, len(rows[row].split()) + 2)
            assert (ids[mask == 0] == 0).all()
    assert sorted(seen) == list(range(50))
    targets = made.targets()
    assert targets is not None
    assert targets.tolist() == [1 if i % 3 else 0 for i in range(50)]


def test_requests_have_exactly_the_workloads_length_and_differ(tmp_path: Path, model: Path) -> None:
    labels = tuple("pos" for _ in range(400))
    made = pack(tmp_path, model, "text-classification", Examples("x", "h", texts=texts(400), labels=labels), facts())
    ids = made.requests()["input_ids"]
    assert ids.shape[1] == 8
    assert (made.requests()["attention_mask"] == 1).all()
    assert (ids[:, 0] == 1).all() and (ids[:, -1] == 2).all()
    assert len(np.unique(ids, axis=0)) == len(ids) >= 64


def test_a_short_text_still_gives_requests(tmp_path: Path, model: Path) -> None:
    made = pack(tmp_path, model, "text-generation", Examples("x", "h", texts=("w1 w2 w3",)), facts(model_type="llama"))
    assert made.requests()["input_ids"].shape[1] == 8


def test_perplexity_windows_score_every_token_but_the_first_of_each(tmp_path: Path, model: Path) -> None:
    known = facts(model_type="llama", max_length=16)
    documents = texts(30, 9)
    made = pack(tmp_path, model, "text-generation", Examples("x", "h", texts=documents), known)
    words = "\n\n".join(documents).split()
    windows = [arrays["input_ids"][0] for arrays, _ in made.evaluation()]
    assert (
        np.concatenate(windows).tolist()[: len(words)]
        == [4 + WORDS.index(word) for word in words][: sum(map(len, windows))]
    )
    assert made.manifest["n_tokens"] == sum(len(window) - 1 for window in windows)
    scored = [words[start + 1 : start + 16] for start in range(0, len(words), 16)]
    assert made.manifest["n_bytes"] >= sum(len(word) for part in scored for word in part)
    assert made.manifest["bos"] is False


@pytest.mark.parametrize(("words", "sizes"), [(35, [16, 16]), (42, [16, 16, 10]), (5, [5])])
def test_a_stub_is_no_window_unless_it_is_all_there_is(
    tmp_path: Path, model: Path, words: int, sizes: list[int]
) -> None:
    known = facts(model_type="llama", max_length=16)
    text = " ".join(WORDS[i % 100] for i in range(words))
    made = pack(tmp_path, model, "text-generation", Examples("x", "h", texts=(text,)), known)
    assert [arrays["input_ids"].shape[1] for arrays, _ in made.evaluation()] == sizes
    assert made.manifest["window_tokens"] == [size - 1 for size in sizes]


def test_scored_and_kept_tokens_are_bounded(tmp_path: Path, model: Path) -> None:
    known = facts(model_type="llama", max_length=2048)
    made = pack(tmp_path, model, "text-generation", Examples("x", "h", texts=texts(6000, 9)), known)
    assert made.manifest["n_tokens"] <= MAX_SCORED_TOKENS + 512
    assert made.manifest["fidelity_tokens"] == FIDELITY_TOKENS


def test_one_token_is_too_little_text(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ExperimentError) as caught:
        pack(tmp_path, model, "text-generation", Examples("x", "h", texts=("w1",)), facts(model_type="llama"))
    assert caught.value.failure.kind is FailureKind.BAD_DATASET


def test_without_data_requests_are_random_tokens_and_that_is_said(tmp_path: Path, model: Path) -> None:
    made = pack(tmp_path, model, "text-classification", None, facts())
    assert "random tokens" in made.manifest["notes"][0]
    assert list(made.evaluation()) == []
    assert made.probe()["input_ids"].shape == (8, 8)


def test_labels_are_matched_by_name_then_without_case() -> None:
    examples = Examples("x", "h", texts=("a", "b"), labels=("POS", "Neg"))
    targets, names = class_targets(examples, facts())
    assert targets.tolist() == [1, 0]
    assert names == ["neg", "pos"]


def test_unnamed_classes_take_whole_numbers_as_indices_even_if_some_are_absent() -> None:
    known = facts(labels=tuple(f"LABEL_{i}" for i in range(11)))
    examples = Examples("x", "h", texts=tuple("abc"), labels=("10", "2", "0"))
    assert class_targets(examples, known)[0].tolist() == [10, 2, 0]


def test_unnamed_classes_take_names_in_order_only_if_all_are_there() -> None:
    known = facts(labels=("LABEL_0", "LABEL_1"))
    assert class_targets(Examples("x", "h", texts=("a", "b"), labels=("yes", "no")), known)[0].tolist() == [1, 0]
    with pytest.raises(ExperimentError):
        class_targets(Examples("x", "h", texts=("a", "b"), labels=("yes", "yes")), known)


def test_a_label_that_the_model_does_not_know_is_named() -> None:
    with pytest.raises(ExperimentError) as caught:
        class_targets(Examples("x", "h", texts=("a", "b"), labels=("pos", "neutral")), facts())
    assert caught.value.failure.kind is FailureKind.BAD_DATASET
    assert "'neutral'" in caught.value.failure.message
