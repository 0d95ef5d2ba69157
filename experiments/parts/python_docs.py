"""The reference texts of the running Python (``pydoc_data.topics``): some 465 KB of English technical prose."""

from __future__ import annotations

import platform
import random
import re
from collections import defaultdict

from experiments.parts.examples import make_examples
from experiments.protocols import Examples

SPLITS = ("train", "validation", "test")
TEST_CHARACTERS, VALIDATION_CHARACTERS = 100_000, 40_000
_SHARED = 80  # characters from which an equal paragraph counts as shared text


def python_docs(split: str) -> Examples:
    """One split of the topics; topics that share a paragraph always lie in the same split.

    About 100,000 characters are for testing and 40,000 for validation; the rest is for training.
    """
    parts = _splits()
    texts = parts[split]
    return make_examples(
        f"python-docs/{split}",
        texts=texts,
        total=len(texts),
        notes=(
            f"reference topics of Python {platform.python_version()}; topics that share a paragraph stay in one split",
        ),
    )


def _splits() -> dict[str, list[str]]:
    from pydoc_data.topics import topics

    groups = sorted(_groups(topics), key=lambda group: group[0])
    random.Random(20240229).shuffle(groups)
    largest = max(groups, key=lambda group: sum(len(topics[name]) for name in group))
    groups.remove(largest)
    wanted = {"test": TEST_CHARACTERS, "validation": VALIDATION_CHARACTERS}
    splits: dict[str, list[str]] = {"train": [topics[name] for name in largest], "validation": [], "test": []}
    for group in groups:
        texts = [topics[name] for name in group]
        short = [s for s in ("test", "validation") if sum(map(len, splits[s])) < wanted[s]]
        splits[short[0] if short else "train"].extend(texts)
    return splits


def _groups(topics: dict[str, str]) -> list[list[str]]:
    """Connected components of topics over equal paragraphs, each sorted by name."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name, text in topics.items():
        for paragraph in re.split(r"\n\s*\n", text):
            flat = " ".join(paragraph.split())
            if len(flat) >= _SHARED:
                homes[flat].append(name)
    parent = {name: name for name in topics}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for names in homes.values():
        for other in names[1:]:
            parent[root(other)] = root(names[0])
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(topics):
        groups[root(name)].append(name)
    return list(groups.values())
