"""Movie-review snippets rated by people (Hutto and Gilbert, VADER, ICWSM 2014), split for training and testing."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path
from typing import IO, cast

from experiments.parts.cache import Cache
from experiments.parts.examples import make_examples
from experiments.parts.packages import source_archive
from experiments.protocols import Examples, Host

DISTRIBUTION, VERSION = "vaderSentiment", "3.3.2"
_OUTER = "additional_resources/hutto_ICWSM_2014.tar.gz"
_INNER = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
LABELS = ("negative", "positive")
TRAIN, VALIDATION = 5_632, 1_000  # rows; the rest is the test split
_KEY: dict[str, object] = {"demo": "reviews", "version": VERSION}
SPLITS = ("train", "validation", "test")


def reviews(host: Host, split: str) -> Examples:
    """One split of the snippets whose mean rating is beyond +-1 (of -4..4); positive if above zero.

    9,023 snippets of 10,605 pass; two that repeat an earlier one are left out, the rest is shuffled with a fixed
    seed (the file is in groups) and cut: train 5,632, validation 1,000, test 2,389. No text lies in two splits.

    Raises:
        ExperimentError: ``download`` if the archive can't be fetched.
    """
    rows = _rows(_text_file(host))
    bounds = {
        "train": (0, TRAIN),
        "validation": (TRAIN, TRAIN + VALIDATION),
        "test": (TRAIN + VALIDATION, len(rows)),
    }
    start, end = bounds[split]
    part = rows[start:end]
    return make_examples(
        f"reviews/{split}",
        texts=[text for text, _ in part],
        labels=[label for _, label in part],
        total=len(part),
        notes=("movie-review snippets rated by people, |rating| > 1, repeats left out, shuffled with a fixed seed",),
    )


def is_here(host: Host) -> bool:
    """True if the snippets were fetched before."""
    return Cache(host.cache).has("datasets", _KEY)


def _text_file(host: Host) -> Path:
    def make(folder: Path) -> None:
        with tarfile.open(source_archive(host, DISTRIBUTION, VERSION)) as outer:
            nested = cast("IO[bytes]", outer.extractfile(f"{DISTRIBUTION}-{VERSION}/{_OUTER}"))
            with tarfile.open(fileobj=nested) as inner:
                content = cast("IO[bytes]", inner.extractfile(_INNER))
                (folder / "snippets.tsv").write_bytes(content.read())

    folder, _ = Cache(host.cache).get("datasets", _KEY, make)
    return folder / "snippets.tsv"


def _rows(path: Path) -> list[tuple[str, str]]:
    rows: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        _, rating, text = line.split("\t", 2)
        if abs(float(rating)) > 1:
            rows.setdefault(text.strip(), LABELS[float(rating) > 0])
    shuffled = list(rows.items())
    random.Random(20140601).shuffle(shuffled)
    return shuffled
