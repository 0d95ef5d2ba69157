"""The demo data: real, split without overlap, the same on every run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.datasets.demo import DemoDataset
from experiments.parts.examples import input_hashes
from experiments.parts.reviews import SPLITS
from experiments.protocols import Host, Task
from experiments.records import ExperimentError, FailureKind


@pytest.mark.parametrize(
    ("name", "task", "sizes"),
    [
        ("digits", "image-classification", (1_257, 180, 360)),
        ("python-docs", "text-generation", None),
    ],
)
def test_splits_do_not_overlap_and_are_stable(
    tmp_path: Path, name: str, task: Task, sizes: tuple[int, ...] | None
) -> None:
    data = DemoDataset(name=name)
    splits = [data.load(Host(cache=tmp_path), task, split) for split in SPLITS]
    hashes = [set(input_hashes(rows)) for rows in splits]
    assert not hashes[0] & hashes[1] and not hashes[0] & hashes[2] and not hashes[1] & hashes[2]
    assert [rows.sha256 for rows in splits] == [data.load(Host(cache=tmp_path), task, s).sha256 for s in SPLITS]
    if sizes:
        assert tuple(map(len, splits)) == sizes


def test_topics_that_share_a_paragraph_stay_in_one_split(tmp_path: Path) -> None:
    data = DemoDataset(name="python-docs")
    texts = {s: data.load(Host(cache=tmp_path), "text-generation", s).texts for s in SPLITS}
    paragraphs = {
        split: {" ".join(p.split()) for text in rows for p in text.split("\n\n") if len(" ".join(p.split())) >= 80}
        for split, rows in texts.items()
    }
    assert not paragraphs["train"] & paragraphs["test"]
    assert not paragraphs["validation"] & paragraphs["test"]
    assert sum(map(len, texts["test"])) > 80_000


def test_reviews_come_from_the_package_index_once(tmp_path: Path) -> None:
    """9,023 snippets with |rating| > 1, two of them repeats; needs the package index or a filled cache."""
    host = Host(cache=tmp_path)
    data = DemoDataset(name="reviews")
    assert data.peek(host, "text-classification") is None
    splits = [data.load(host, "text-classification", split) for split in SPLITS]
    assert tuple(map(len, splits)) == (5_632, 1_000, 2_389)
    hashes = [set(input_hashes(rows)) for rows in splits]
    assert len(hashes[0] | hashes[1] | hashes[2]) == 9_021
    for rows in splits:
        share = (rows.labels or ()).count("positive") / len(rows)
        assert 0.45 < share < 0.55, "both classes everywhere, although the file is in groups"
    assert data.load(Host(cache=tmp_path, offline=True), "text-classification").sha256 == splits[2].sha256


def test_without_network_and_cache_the_reason_is_a_download(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as caught:
        DemoDataset(name="reviews").load(Host(cache=tmp_path, offline=True), "text-classification")
    assert caught.value.failure.kind is FailureKind.DOWNLOAD
    assert "vaderSentiment" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "task", "why"),
    [
        ("digits", "text-classification", "holds images"),
        ("python-docs", "text-classification", "no labels"),
        ("python-docs", "image-classification", "holds texts"),
    ],
)
def test_data_that_does_not_suit_a_task_is_refused(tmp_path: Path, name: str, task: Task, why: str) -> None:
    with pytest.raises(ExperimentError, match=why) as caught:
        DemoDataset(name=name).load(Host(cache=tmp_path), task)
    assert caught.value.failure.kind is FailureKind.BAD_DATASET


def test_an_unknown_split_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no split 'dev'") as caught:
        DemoDataset(name="digits", split="dev").load(Host(cache=tmp_path), "image-classification")
    assert "train, validation, test" in str(caught.value.failure.fix)


def test_reading_demo_data_imports_neither_torch_nor_scikit_learn(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from experiments.protocols import Host\n"
        "from experiments.datasets.demo import DemoDataset\n"
        f"h = Host(cache=Path({str(tmp_path)!r}))\n"
        "DemoDataset(name='digits').load(h, 'image-classification')\n"
        "DemoDataset(name='python-docs').load(h, 'text-generation')\n"
        "assert not {'torch', 'sklearn', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
