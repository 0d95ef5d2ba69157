"""Datasets of a hub: only the files of a split are fetched, and read by the same reader as local ones."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.datasets.hub import HubDataset
from experiments.protocols import Host
from experiments.records import ExperimentError, FailureKind
from tests.experiments.hub_server import Hub, Repository, running_hub

NAME = "team/reviews"


def parquet(texts: list[str], labels: list[str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table({"text": texts, "label": labels}), out)
    return out.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as hub:
        hub.datasets[NAME] = Repository(
            {
                "README.md": b"card",
                "reviews.py": b"1/0",
                "data/train-00000-of-00002.parquet": parquet(["a", "b"], ["x", "y"]),
                "data/train-00001-of-00002.parquet": parquet(["c"], ["x"]),
                "data/test-00000-of-00001.parquet": parquet(["d", "e"], ["y", "x"]),
            }
        )
        hub.datasets["team/table"] = Repository(
            {"train.csv": b"text,label\na,x\n", "validation.jsonl": b'{"text":"b"}'}
        )
        hub.datasets["team/glue"] = Repository({f"{c}/test-0.parquet": parquet([c], ["x"]) for c in ("cola", "sst2")})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield hub


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(cache=tmp_path / "cache")


def test_only_the_files_of_the_split_are_fetched(hub: Hub, host: Host) -> None:
    data = HubDataset(name=NAME)
    assert data.peek(host, "text-classification") is None
    assert data.load(host, "text-classification").texts == ("d", "e")
    fetched = {path.rsplit("/", 1)[1] for method, path in hub.requests if "/resolve/" in path}
    assert fetched == {"test-00000-of-00001.parquet"}
    assert data.load(host, "text-classification", split="train").texts == ("a", "b", "c")
    assert not list(host.cache.rglob("*.py"))


def test_what_was_fetched_is_read_offline(hub: Hub, host: Host) -> None:
    data = HubDataset(name=NAME)
    rows = data.load(host, "text-classification")
    seen = len(hub.requests)
    peeked = data.peek(host, "text-classification")
    assert peeked is not None and peeked.sha256 == rows.sha256
    assert data.load(Host(cache=host.cache, offline=True), "text-classification") == rows
    assert len(hub.requests) == seen


def test_csv_and_jsonl_are_read_too(hub: Hub, host: Host) -> None:
    data = HubDataset(name="team/table", split="train")
    assert data.load(host, "text-classification").labels == ("x",)
    assert data.load(host, "text-generation", split="validation").texts == ("b",)


def test_several_configurations_must_be_chosen_from(hub: Hub, host: Host) -> None:
    with pytest.raises(ExperimentError, match="several configurations with split 'test': cola, sst2"):
        HubDataset(name="team/glue").load(host, "text-classification")
    assert HubDataset(name="team/glue", config="sst2").load(host, "text-classification").texts == ("sst2",)


@pytest.mark.parametrize(
    ("name", "split", "kind", "why"),
    [
        ("team/absent", "test", FailureKind.BAD_DATASET, "there is no dataset"),
        (NAME, "tset", FailureKind.BAD_DATASET, "did you mean 'test'"),
        ("not a name", "test", FailureKind.BAD_DATASET, "not a repository name"),
    ],
)
def test_what_is_not_there_is_said(hub: Hub, host: Host, name: str, split: str, kind: FailureKind, why: str) -> None:
    with pytest.raises(ExperimentError, match=why) as caught:
        HubDataset(name=name, split=split).load(host, "text-classification")
    assert caught.value.failure.kind is kind


def test_offline_and_gated_are_download_failures(hub: Hub, host: Host) -> None:
    with pytest.raises(ExperimentError, match="offline") as caught:
        HubDataset(name=NAME).load(Host(cache=host.cache, offline=True), "text-classification")
    assert caught.value.failure.kind is FailureKind.DOWNLOAD
    hub.datasets[NAME].gated = True
    with pytest.raises(ExperimentError, match="gated") as caught:
        HubDataset(name=NAME).load(host, "text-classification")
    assert caught.value.failure.kind is FailureKind.DOWNLOAD
