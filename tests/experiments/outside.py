"""Runs the code of an artifact's card where Steelyard does not exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """
import contextlib, io, json, os, sys
sys.path.insert(0, "")
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("experiments", "webapp", "workers"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NotInstalled())
texts, cards = json.loads(sys.argv[1]), json.loads(sys.argv[2])
every = {}
for folder, code in cards.items():
    os.chdir(folder)
    here = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, here)
    answers = every[folder] = []
    for text in texts:
        if "session" in here:
            encoded = here["Tokenizer"].from_file("tokenizer.json").encode(text)
            known = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
            given = {name: here["np"].array([getattr(encoded, known[name])]) for name in here["wanted"]}
            answers.append(here["session"].run(None, given)[0][0].tolist())
        else:
            given = here["tokenizer"](text, return_tensors="pt")
            with here["torch"].no_grad():
                answers.append(here["model"](**given).logits[0].float().tolist())
print(json.dumps(every))
"""


def answers(folders: list[Path], texts: list[str]) -> list[list[list[float]]]:
    """Logits of ``texts`` by the code on the card of each folder, in an isolated interpreter."""
    cards = {}
    for folder in folders:
        block = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        assert block is not None, "the card shows no code"
        cards[str(folder)] = block[1]
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, json.dumps(texts), json.dumps(cards)],
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[list[float]]] = json.loads(done.stdout.strip().splitlines()[-1])
    return [found[str(folder)] for folder in folders]


def own_answers(folder: Path, runtime: Any, texts: list[str]) -> list[list[float]]:
    """Logits of the same texts by the engine's runtime."""
    import numpy as np
    from tokenizers import Tokenizer

    session = runtime.open(folder, "cpu", 1)
    found = []
    for text in texts:
        encoded = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text)
        given = {name: np.array([getattr(encoded, name)]) for name in ("attention_mask", "type_ids")}
        inputs = {
            "input_ids": np.array([encoded.ids]),
            "attention_mask": given["attention_mask"],
            "token_type_ids": given["type_ids"],
        }
        found.append(session.forward(inputs)[0].tolist())
    return found
