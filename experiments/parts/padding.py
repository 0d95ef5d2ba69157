"""Which token pads a batch: one rule, stated, also for models that name no padding token."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Padding:
    """The padding token. ``note`` says where it came from if the model names none."""

    id: int
    token: str
    note: str | None = None


def padding_of(folder: Path, vocabulary: dict[str, int]) -> Padding:
    """The padding token of the model in ``folder``, whose tokenizer has ``vocabulary`` (token -> id).

    The model's own padding token if it names one; else its end, unknown or first token, since an attention mask hides
    padding from every score.
    """
    named = _named_tokens(folder)
    if (token := named.get("pad_token")) in vocabulary:
        return Padding(vocabulary[token], token)
    config = _read(folder / "config.json")
    by_id = {index: token for token, index in vocabulary.items()}
    if isinstance(own := config.get("pad_token_id"), int) and own in by_id:
        return Padding(own, by_id[own])
    for role in ("eos_token", "unk_token"):
        if (token := named.get(role)) in vocabulary:
            return Padding(vocabulary[token], token, f"the model names no padding token; {token!r} is used, masked")
    end = config.get("eos_token_id")
    first = end[0] if isinstance(end, list) and end else end
    chosen = first if isinstance(first, int) and first in by_id else min(by_id, default=0)
    token = by_id.get(chosen, "")
    return Padding(chosen, token, f"the model names no padding token; {token!r} (id {chosen}) is used, masked")


def _named_tokens(folder: Path) -> dict[str, str]:
    """Role -> token text, from special_tokens_map.json and tokenizer_config.json (which wins)."""
    named: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for role, value in _read(folder / file).items():
            text = value.get("content") if isinstance(value, dict) else value
            if role.endswith("_token") and isinstance(text, str):
                named[role] = text
    return named


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    loaded = json.loads(path.read_text(encoding="utf-8"))
    return loaded if isinstance(loaded, dict) else {}
