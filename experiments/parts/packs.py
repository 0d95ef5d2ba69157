"""Packs: everything a measured process feeds to a model, prepared once as plain arrays.

A pack is made without torch from a model's tokenizer and a dataset, and is content-addressed. Baseline and candidate
read the same pack, so they answer the same examples; the measured process needs neither tokenizer nor dataset.

Files of a pack (all arrays ``.npy``):

* ``eval.json`` and ``eval_{i}_{input}.npy``: batches for quality, in a fixed order and composition.
* ``probe_{input}.npy``: up to 8 examples in one padded batch, for the canary and the round trip.
* ``work_{input}.npy``: distinct requests of exactly the workload's length, for timing.
* ``manifest.json``: the protocol in words and numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from experiments.parts.images import image_pixels
from experiments.parts.padded_rows import TYPED, Arrays, pad_id, pad_rows
from experiments.parts.tokenizer import load_tokenizer
from experiments.protocols import Examples, ModelFacts, Task
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from experiments.spec import Workload


#: Raise it when the meaning of a pack changes.
PACK_VERSION = 2
#: Examples of one evaluation batch; fixed, since dynamic quantization scales over the whole batch.
EVAL_BATCH = 16
#: Tokens of one perplexity window (or the model's maximum, if that is less).
CONTEXT = 512
#: Scored tokens at most, for perplexity; fidelity uses the first 2,048 of them.
MAX_SCORED_TOKENS = 8_192
FIDELITY_TOKENS = 2_048
#: Distinct requests that timing cycles through, so that no cache of repeated prompts can flatter.
MAX_REQUESTS = 256
PROBE = 8


@dataclass(frozen=True)
class Pack:
    """A finished pack on disk."""

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The protocol: task, hashes, class names, token and byte counts."""
        loaded: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return loaded

    def probe(self) -> Arrays:
        """One padded batch of up to 8 examples."""
        return self._arrays("probe")

    def requests(self) -> Arrays:
        """All timing requests: arrays whose first axis is the request."""
        return self._arrays("work")

    def evaluation(self) -> Iterator[tuple[Arrays, dict[str, Any]]]:
        """The evaluation batches in order, each with its entry of ``eval.json`` (``rows``: example indices)."""
        path = self.folder / "eval.json"
        if path.exists():
            for index, entry in enumerate(json.loads(path.read_text())):
                yield self._arrays(f"eval_{index}"), entry

    def targets(self) -> npt.NDArray[Any] | None:
        """One per example: class indices in the model's order (int64) or scores of pairs (float64); or None."""
        path = self.folder / "targets.npy"
        return np.load(path) if path.exists() else None

    def _arrays(self, prefix: str) -> Arrays:
        found = {}
        for path in sorted(self.folder.glob(f"{prefix}_*.npy")):
            found[path.stem.removeprefix(f"{prefix}_")] = np.load(path)
        return found


def make_pack(
    folder: Path,
    *,
    model: Path,
    facts: ModelFacts,
    task: Task,
    examples: Examples | None,
    workload: Workload,
    seed: int,
) -> None:
    """Fill ``folder`` with the pack of ``examples`` for the model in folder ``model``.

    Raises:
        ExperimentError: ``bad_dataset`` if labels and model don't fit, or nothing is left to score.
    """
    writer = _Writer(folder)
    manifest: dict[str, Any] = {
        "task": task,
        "dataset": examples.name if examples else None,
        "dataset_sha256": examples.sha256 if examples else None,
        "examples": len(examples) if examples else 0,
        "sequence_length": workload.sequence_length,
        "notes": list(examples.notes) if examples else ["no dataset: requests are random tokens, quality is not told"],
    }
    if task == "image-classification":
        manifest |= _images(writer, model, facts, examples, seed)
    else:
        tokenizer = load_tokenizer(model)
        manifest["tokenizer_sha256"] = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        manifest["vocab_size"] = tokenizer.get_vocab_size(with_added_tokens=True)
        specials = tokenizer.encode("").ids if task != "text-generation" else []
        manifest |= _requests(writer, tokenizer, specials, facts, examples, workload, seed)
        if examples is None:
            _probe_of_requests(writer, folder)
        elif task == "text-generation":
            manifest |= _windows(writer, tokenizer, facts, examples)
        else:
            manifest |= _texts(writer, tokenizer, facts, examples, workload)
    if task.endswith("classification") and examples is not None:
        targets, names = class_targets(examples, facts)
        manifest["classes"] = names
        writer.save("targets", targets)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


class _Writer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[dict[str, Any]] = []

    def save(self, name: str, array: npt.NDArray[Any]) -> None:
        np.save(self.folder / f"{name}.npy", np.ascontiguousarray(array))

    def batch(self, prefix: str, arrays: Arrays) -> None:
        for name, array in arrays.items():
            self.save(f"{prefix}_{name}", array)

    def evaluation(self, arrays: Arrays, **entry: Any) -> None:
        self.batch(f"eval_{len(self.entries)}", arrays)
        self.entries.append(entry)

    def finish(self) -> None:
        (self.folder / "eval.json").write_text(json.dumps(self.entries))


def class_targets(examples: Examples, facts: ModelFacts) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Class indices in the model's label order, and the class names.

    Names are matched as written, then without case. A model whose classes have no names (``LABEL_0`` ...) takes whole
    numbers as class indices, or, if the data has exactly as many classes, its names in sorted order.

    Raises:
        ExperimentError: ``bad_dataset`` naming the labels that the model does not know.
    """
    if examples.labels is None:
        raise ExperimentError(
            FailureKind.BAD_DATASET,
            f"{examples.name} has no label column, which classification needs",
            fix="Name it with dataset.columns.label.",
            field="dataset.columns.label",
        )
    known = list(facts.labels)
    present = sorted(set(examples.labels))
    nameless = all(name.startswith("LABEL_") for name in known)
    index = {name: i for i, name in enumerate(known)}
    if not all(name in index for name in present):
        index = {name.casefold(): i for i, name in enumerate(known)}
        if len(index) == len(known) and all(name.casefold() in index for name in present):
            index = {name: index[name.casefold()] for name in present}
        elif nameless and all(name.isdecimal() and int(name) < len(known) for name in present):
            index = {name: int(name) for name in present}
        elif nameless and len(present) == len(known):
            index = {name: i for i, name in enumerate(present)}
        else:
            unknown = [name for name in present if name not in known]
            raise ExperimentError(
                FailureKind.BAD_DATASET,
                f"labels of {examples.name} are not classes of the model: {', '.join(map(repr, unknown[:5]))}; "
                f"the model knows {', '.join(map(repr, known[:10]))}",
                fix="Rename the labels in the data, or choose the column that holds the model's classes.",
                field="dataset.columns.label",
            )
    return np.array([index[name] for name in examples.labels], dtype=np.int64), known


def _texts(
    writer: _Writer, tokenizer: Tokenizer, facts: ModelFacts, examples: Examples, workload: Workload
) -> dict[str, Any]:
    length = min(workload.sequence_length, facts.max_length or workload.sequence_length)
    pad = pad_id(tokenizer)
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    firsts: tuple[Any, ...] = examples.texts
    inputs = list(zip(firsts, examples.pairs, strict=True)) if examples.pairs and not examples.scores else list(firsts)
    encoded = tokenizer.encode_batch(inputs)
    seconds = tokenizer.encode_batch(list(examples.pairs)) if examples.pairs and examples.scores else []
    every = [*encoded, *seconds]
    typed = facts.model_type in TYPED
    truncated = sum(bool(e.overflowing) for e in every)
    order = sorted(range(len(every)), key=lambda i: (len(every[i].ids), i))
    for start in range(0, len(order), EVAL_BATCH):
        rows = order[start : start + EVAL_BATCH]
        writer.evaluation(
            pad_rows([every[i].ids for i in rows], pad, [every[i].type_ids for i in rows] if typed else None), rows=rows
        )
    writer.finish()
    picked = [every[i] for i in order[:: max(1, len(order) // PROBE)][:PROBE]]
    writer.batch("probe", pad_rows([e.ids for e in picked], pad, [e.type_ids for e in picked] if typed else None))
    if examples.scores is not None and examples.pairs is not None:
        writer.save("targets", np.array(examples.scores, dtype=np.float64))
    return {
        "protocol": f"{len(examples)} examples, truncated to {length} tokens ({truncated} were longer), "
        f"batches of {EVAL_BATCH} by length, padding masked",
        "n_tokens": sum(len(e.ids) for e in every),
    }


def _windows(writer: _Writer, tokenizer: Tokenizer, facts: ModelFacts, examples: Examples) -> dict[str, Any]:
    """Perplexity windows: documents joined by a blank line, cut into windows without overlap.

    The first token of each window is context only. Text beyond the budget is neither scored nor counted, nor is a last
    window of less than half the length: intervals resample windows, and a stub would weigh like any other.
    """
    context = min(CONTEXT, facts.max_length or CONTEXT)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    text = "\n\n".join(examples.texts)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    ids, offsets = encoding.ids, encoding.offsets
    windows: list[list[int]] = []
    documents: list[int] = []
    n_bytes = n_tokens = 0
    for start in range(0, len(ids), context):
        piece = ids[start : start + context]
        if len(piece) < 2 or n_tokens >= MAX_SCORED_TOKENS or (windows and len(piece) < context / 2):
            break
        windows.append(piece)
        n_tokens += len(piece) - 1
        n_bytes += len(text[offsets[start + 1][0] : offsets[start + len(piece) - 1][1]].encode())
        documents.append(len(piece) - 1)
    if not windows:
        raise ExperimentError(
            FailureKind.BAD_DATASET,
            f"{examples.name} has fewer than two tokens; perplexity needs a text",
            fix="Choose another split or raise dataset.limit.",
            field="dataset",
        )
    for number, piece in enumerate(windows):
        writer.evaluation(pad_rows([piece], 0, None), rows=[number])
    writer.finish()
    probe_length = min(32, len(ids) // 2 or 1)
    steps = [ids[i * probe_length : i * probe_length + max(2, probe_length - 3 * i)] for i in range(PROBE)]
    writer.batch("probe", pad_rows([s for s in steps if len(s) >= 2] or [ids[:2]], 0, None))
    return {
        "protocol": f"{len(windows)} windows of {context} tokens, stride {context}, no BOS, first token of a window "
        "is context only, a last window of less than half is left out",
        "context": context,
        "stride": context,
        "bos": False,
        "n_tokens": n_tokens,
        "n_bytes": n_bytes,
        "window_tokens": documents,
        "fidelity_tokens": min(FIDELITY_TOKENS, n_tokens),
    }


def _requests(
    writer: _Writer,
    tokenizer: Tokenizer,
    specials: list[int],
    facts: ModelFacts,
    examples: Examples | None,
    workload: Workload,
    seed: int,
) -> dict[str, Any]:
    """Requests of exactly ``sequence_length`` tokens, cut from the data's own text without padding."""
    length = workload.sequence_length
    head, tail = specials[:1], specials[1:][-1:]
    body = max(1, length - len(head) - len(tail))
    if length < len(head) + len(tail) + 1:
        head, tail, body = [], [], length
    if examples is None:
        generator = np.random.default_rng(seed)
        stream = generator.integers(0, facts.vocab_size or 1000, size=body * 64).tolist()
    else:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        stream = []
        for text in examples.texts:
            stream += tokenizer.encode(text, add_special_tokens=False).ids
            if len(stream) >= body * MAX_REQUESTS:
                break
        stream = stream or [0]
    # Windows start at different offsets where the text is too short for distinct ones.
    count = min(MAX_REQUESTS, max(64, len(stream) // body))
    step = body if len(stream) >= body * count else max(1, len(stream) // count)
    ring = np.array(stream * (2 + (body + step * count) // len(stream)), dtype=np.int64)
    rows = [[*head, *ring[i * step : i * step + body].tolist(), *tail] for i in range(count)]
    ids = np.array(rows, dtype=np.int64)
    arrays: Arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if facts.model_type in TYPED:
        arrays["token_type_ids"] = np.zeros_like(ids)
    writer.batch("work", arrays)
    return {"requests": count}


def _probe_of_requests(writer: _Writer, folder: Path) -> None:
    for name, array in Pack(folder).requests().items():
        writer.save(f"probe_{name}", array[:PROBE])


def _images(writer: _Writer, model: Path, facts: ModelFacts, examples: Examples | None, seed: int) -> dict[str, Any]:
    if examples is None:
        channels, height, width = facts.image_size or (3, 224, 224)
        pixels = np.random.default_rng(seed).standard_normal((64, channels, height, width), dtype=np.float32)
        writer.save("work_pixel_values", pixels)
        writer.save("probe_pixel_values", pixels[:PROBE])
        return {"requests": len(pixels)}
    assert examples.images is not None
    pixels = image_pixels(model, examples.images)
    for start in range(0, len(pixels), EVAL_BATCH):
        rows = list(range(start, min(start + EVAL_BATCH, len(pixels))))
        writer.evaluation({"pixel_values": pixels[rows]}, rows=rows)
    writer.finish()
    writer.save("probe_pixel_values", pixels[:PROBE])
    count = min(MAX_REQUESTS, len(pixels))
    writer.save("work_pixel_values", pixels[:count])
    return {
        "protocol": f"{len(pixels)} images, batches of {EVAL_BATCH}",
        "requests": count,
    }
