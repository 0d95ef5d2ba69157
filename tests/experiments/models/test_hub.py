"""Models of a hub: the real client against a hub on the loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.models.hub import HubModel
from experiments.parts import hubclient
from experiments.parts.loading import load_module, load_tokenizer
from experiments.protocols import Host
from experiments.records import ExperimentError, FailureKind
from tests.experiments.hub_server import Hub, Repository, running_hub
from tests.experiments.tiny_models import tiny_classifier

NAME = "team/classifier"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tiny_classifier(tmp_path_factory.mktemp("source"), ["good", "bad"], ["neg", "pos"])
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {
        **made,
        "pytorch_model.bin": b"pickle",
        "modeling_x.py": b"1/0",
        "onnx/model.onnx": b"big",
        "README.md": b"",
    }


@pytest.fixture
def hub(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as hub:
        hub.models[NAME] = Repository(dict(files))
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield hub


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(cache=tmp_path / "cache")


def refusal(host: Host, name: str = NAME, revision: str = "main") -> ExperimentError:
    with pytest.raises(ExperimentError) as caught:
        HubModel(name=name, revision=revision).fetch(host)
    assert caught.value.failure.fix
    return caught.value


def test_a_revision_is_fetched_once_and_its_commit_is_recorded(hub: Hub, tmp_path: Path) -> None:
    told: list[tuple[str, float | None]] = []
    host = Host(cache=tmp_path / "cache", tell=lambda message, fraction: told.append((message, fraction)))
    model = HubModel(name=NAME)
    assert model.inspect(host) is None and model.ready(host) is None
    folder = model.fetch(host)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    facts = model.inspect(host)
    assert facts is not None and facts.name == NAME and facts.revision == hub.models[NAME].commit
    assert told[-1][1] == 1.0 and "downloading team/classifier" in told[-1][0]
    load_module(folder, "text-classification")
    assert load_tokenizer(folder).encode("good").tokens == ["[CLS]", "good", "[SEP]"]
    downloads = [path for method, path in hub.requests if "/resolve/" in path and method == "GET"]
    assert model.fetch(host) == folder
    assert [path for method, path in hub.requests if "/resolve/" in path and method == "GET"] == downloads


def test_neither_pickle_nor_code_reaches_the_disk(hub: Hub, host: Host) -> None:
    HubModel(name=NAME).fetch(host)
    assert not [path for path in host.cache.rglob("*") if path.suffix in {".bin", ".py", ".onnx"}]
    assert not [path for _, path in hub.requests if path.endswith((".bin", ".py", ".onnx"))]


def test_a_commit_needs_no_network_once_it_is_here(hub: Hub, host: Host) -> None:
    commit = hub.models[NAME].commit
    pinned = HubModel(name=NAME, revision=commit)
    folder = pinned.fetch(host)
    seen = len(hub.requests)
    assert pinned.fetch(host) == folder == pinned.ready(host)
    assert len(hub.requests) == seen


def test_a_branch_that_moved_is_fetched_again(hub: Hub, host: Host) -> None:
    first = HubModel(name=NAME).fetch(host)
    hub.models[NAME].files["generation_config.json"] = b"{}"
    second = HubModel(name=NAME).fetch(host)
    facts = HubModel(name=NAME).inspect(host)
    assert first != second and facts is not None and facts.revision == hub.models[NAME].commit


def test_an_unreachable_hub_is_bridged_by_the_cache_and_said(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    host = Host(cache=tmp_path / "cache", tell=lambda message, fraction: told.append(message))
    folder = HubModel(name=NAME).fetch(host)
    hub.models[NAME].status = 503
    assert HubModel(name=NAME).fetch(host) == folder
    assert any("can't be reached; using" in message for message in told)
    offline = Host(cache=host.cache, offline=True)
    assert HubModel(name=NAME).fetch(offline) == folder == HubModel(name=NAME).ready(offline)


def test_offline_and_not_cached_is_a_download_failure(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal(Host(cache=tmp_path, offline=True))
    assert error.failure.kind is FailureKind.DOWNLOAD and "offline" in str(error)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refusal(Host(cache=tmp_path)).failure.kind is FailureKind.DOWNLOAD
    assert hub.requests == []


def test_what_is_not_there_is_a_bad_model(hub: Hub, host: Host) -> None:
    absent = refusal(host, "team/clasifier")
    assert absent.failure.kind is FailureKind.BAD_MODEL and "there is no model 'team/clasifier'" in str(absent)
    revision = refusal(host, revision="v9")
    assert revision.failure.kind is FailureKind.BAD_MODEL and "has no revision 'v9'" in str(revision)
    markup = refusal(host, "<img src=x onerror=alert(1)>")
    assert markup.failure.kind is FailureKind.BAD_MODEL and "not a repository name" in str(markup)


def test_a_gated_model_says_what_to_do(hub: Hub, host: Host) -> None:
    hub.models[NAME].gated = True
    error = refusal(host)
    assert error.failure.kind is FailureKind.DOWNLOAD
    assert "gated" in str(error) and "HF_TOKEN" in (error.failure.fix or "")


def test_a_hub_that_fails_or_does_not_answer_is_a_download_failure(
    hub: Hub, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.models[NAME].status = 500
    assert "answered 500" in str(refusal(host))
    hub.models[NAME].status, hub.models[NAME].delay_s = None, 1.0
    monkeypatch.setattr(hubclient, "TIMEOUT_S", 0.2)
    slow = refusal(host)
    assert slow.failure.kind is FailureKind.DOWNLOAD and "did not answer in time" in str(slow)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "can't be reached" in str(refusal(host))


def test_a_repository_of_pickles_is_refused(hub: Hub, host: Host) -> None:
    del hub.models[NAME].files["model.safetensors"]
    error = refusal(host)
    assert error.failure.kind is FailureKind.BAD_MODEL and "exist only as pytorch_model.bin" in str(error)


def test_a_broken_file_on_the_hub_is_refused(hub: Hub, host: Host) -> None:
    hub.models[NAME].files["model.safetensors"] = hub.models[NAME].files["model.safetensors"][:-50]
    error = refusal(host)
    assert error.failure.kind is FailureKind.BAD_MODEL and "expected" in str(error)
