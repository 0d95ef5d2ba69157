"""A tiny model's folder, and a build context whose calibration rows are real, for tests of what learns from rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.protocols import BuildContext, Examples, Task, Use
from tests.experiments.building import context
from tests.experiments.tiny_models import tiny_classifier, tiny_decoder

WORDS = tuple(f"w{number}" for number in range(60))


def texts(count: int, length: int = 24) -> tuple[str, ...]:
    """Seeded texts of different lengths."""
    import random

    chance = random.Random(0)
    return tuple(" ".join(chance.choices(WORDS, k=chance.randint(length // 2, length))) for _ in range(count))


def calibrating(work: Path, task: Task, rows: int = 48, **changes: Any) -> tuple[Any, BuildContext]:
    """A random model that is loaded from ``work / 'model'``, and its context; labels are the model's own answers."""
    from experiments.parts.encoded_rows import encode_rows
    from experiments.parts.loading import load_module
    from experiments.parts.model_facts import facts_of_folder
    from experiments.parts.torch_session import TorchSession

    make = tiny_decoder if task == "text-generation" else tiny_classifier
    folder = work / "model"
    make(folder, WORDS, *([] if task == "text-generation" else [["no", "yes"]]))
    facts = replace(facts_of_folder(folder), task=task)
    module: Any = load_module(folder, task)
    for parameter in module.parameters():  # so that every layer matters to the answers, as in a trained model
        if parameter.ndim > 1:
            parameter.data *= 6
    module.save_pretrained(folder)
    examples = Examples("tiny", "0", texts=texts(rows), total=rows)
    ready = context(work, task, source=folder, facts=facts)
    if task == "text-classification":
        encoded = encode_rows(examples, ready)
        session = TorchSession(module, task, "cpu", 0)
        answers = [int(session.forward(encoded.batch([row])).argmax()) for row in range(rows)]
        examples = replace(examples, labels=tuple(("no", "yes")[answer] for answer in answers))

    def some(use: Use, limit: int | None = None) -> Examples:
        assert use == "calibration"
        labels = examples.labels[:limit] if examples.labels else None
        return replace(examples, texts=examples.texts[:limit], labels=labels)

    return module, replace(ready, **{"rows": some, "module": lambda: load_module(folder, task), **changes})


def exported(module: Any, ready: BuildContext, work: Path) -> tuple[Path, Path]:
    """(the graph that was exported from ``module``, where the result of a step may be written)."""
    from experiments.runtimes.onnxruntime import OnnxRuntime

    for name in ("graph", "target"):
        (work / name).mkdir(exist_ok=True)
    OnnxRuntime().save(module, work / "graph", ready, ())
    (work / "target" / "config.json").write_bytes((work / "graph" / "config.json").read_bytes())
    return work / "graph" / "model.onnx", work / "target" / "model.onnx"
