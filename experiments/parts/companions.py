"""Files beside the weights that a deployed model needs: tokenizer, image processor, generation settings."""

from __future__ import annotations

import shutil
from pathlib import Path

_NAMES = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "generation_config.json",
        "merges.txt",
        "preprocessor_config.json",
        "sentencepiece.bpe.model",
        "special_tokens_map.json",
        "spiece.model",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)


def copy_companions(source: Path, folder: Path) -> tuple[str, ...]:
    """Copy what ``source`` has of them into ``folder`` by name, so nothing is parsed and no hub is asked."""
    copied = []
    for name in sorted(_NAMES):
        if (source / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)
            copied.append(name)
    return tuple(copied)
