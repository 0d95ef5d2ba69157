"""A cache in which nothing is made yet: only what is fetched, and the machine's ceilings, are there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from experiments.parts.cache import default_cache

#: What a person has after the first use of a model and its data, whatever experiments come later.
FETCHED = ("models", "datasets", "packages", "hashes", "ceilings")


def cold_cache(folder: Path) -> Path:
    """A new cache below ``folder`` that shares what was fetched with this user's cache."""
    cache = Path(tempfile.mkdtemp(prefix="cache-", dir=folder))
    kept = default_cache()
    for name in FETCHED:
        (kept / name).mkdir(parents=True, exist_ok=True)  # what is fetched for the benchmark stays
        (cache / name).symlink_to(kept / name)
    return cache
