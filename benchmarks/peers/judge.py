"""One judge for all artifacts: the same rows and session settings, timed in turn so that a busy moment hits all."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROUNDS, REQUESTS = 10, 5


def main(job: dict[str, Any]) -> None:
    """Print p50 at batch 1 and accuracy of every artifact."""
    import numpy as np
    import onnxruntime
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    numbers = AutoConfig.from_pretrained(job["model"]).label2id
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = job["threads"]
    settings.add_session_config_entry("session.force_spinning_stop", "1")  # waiting sessions leave the cores alone
    settings.log_severity_level = 4
    sessions = {
        name: onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        for name, path in job["artifacts"].items()
    }

    def ask(session: Any, texts: list[str], pad: bool) -> Any:
        padding = "max_length" if pad else False
        encoded = tokenizer(
            texts, padding=padding, truncation=True, max_length=job["sequence_length"], return_tensors="np"
        )
        slots = {slot.name: slot.type for slot in session.get_inputs()}
        feeds = {n: encoded[n].astype(np.int32 if "int32" in t else np.int64) for n, t in slots.items()}
        started = time.perf_counter()
        (logits, *_) = session.run(None, feeds)
        return logits, time.perf_counter() - started

    times: dict[str, list[float]] = {name: [] for name in sessions}
    for number in range(ROUNDS):
        for name, session in sessions.items():
            ask(session, job["requests"][:1], True)
            for index in range(REQUESTS):
                text = job["requests"][(number * REQUESTS + index) % len(job["requests"])]
                times[name].append(ask(session, [text], True)[1])
    wanted = np.array([numbers[label] for label in job["labels"]])
    found = {}
    for name, session in sessions.items():
        answers = np.array([int(np.argmax(ask(session, [text], False)[0])) for text in job["texts"]])
        found[name] = {
            "p50_ms": statistics.median(times[name]) * 1e3,
            "accuracy": float((answers == wanted).mean()),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
