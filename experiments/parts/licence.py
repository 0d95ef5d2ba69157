"""Under which licence a model folder says that it is."""

from __future__ import annotations

import re
from pathlib import Path

_FRONT = re.compile(r"\A---\s*\n(.*?)\n---\s*(\n|\Z)", re.DOTALL)
_FIELD = re.compile(r"^license:\s*['\"]?([\w.+-]{1,60})['\"]?\s*$", re.MULTILINE)


def licence_of(folder: Path) -> str | None:
    """The ``license`` of the card's front matter, else the first line of a LICENSE file; None if neither is there."""
    card = folder / "README.md"
    if card.is_file():
        front = _FRONT.match(card.read_text(errors="replace")[:20_000])
        found = _FIELD.search(front[1]) if front else None
        if found:
            return found[1]
    for name in ("LICENSE", "LICENSE.txt", "LICENSE.md"):
        if (folder / name).is_file():
            lines = (folder / name).read_text(errors="replace")[:2_000].splitlines()
            first = next((line.strip(" #") for line in lines if line.strip(" #")), "")
            return " ".join(first.split())[:120] or None
    return None
