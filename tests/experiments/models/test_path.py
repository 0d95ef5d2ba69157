"""Folders that can never run are refused before queueing, by file and reason; the others give their facts."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from experiments.models.path import PathModel
from experiments.parts.loading import load_module
from experiments.preflight import resolve_task
from experiments.protocols import Host, ModelFacts
from experiments.records import ExperimentError, FailureKind
from experiments.spec import ExperimentSpec, parse
from tests.experiments.parts.small_models import classifier, gpt2, llama, logits, rewrite


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(cache=tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    return path


def inspect(host: Host, folder: Path) -> ModelFacts:
    return PathModel(path=str(folder)).inspect(host)


def refusal(host: Host, folder: Path) -> str:
    with pytest.raises(ExperimentError) as caught:
        inspect(host, folder)
    assert caught.value.failure.kind is FailureKind.BAD_MODEL
    assert caught.value.failure.fix
    return str(caught.value)


def spec_of(folder: Path, **fields: Any) -> ExperimentSpec:
    data = {"name": "x", "model": {"source": "path", "path": str(folder)}, "baseline": "a", **fields}
    return parse({**data, "experiments": [{"name": "a"}]}).expand()[0]


def test_missing_shards_are_named_with_their_tensors(host: Host, folder: Path) -> None:
    """FC-001."""
    llama(folder, max_shard_size="40KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) >= 3
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    lost = sum(file == shards[1].name for file in index.values())
    shards[1].unlink()
    assert f"1 of {len(shards)} shards are missing: {shards[1].name} ({lost} tensors)" in refusal(host, folder)


def test_whole_shards_are_counted_as_one_model(host: Host, folder: Path) -> None:
    model = llama(folder, max_shard_size="40KB")
    facts = inspect(host, folder)
    assert facts.parameters == sum(p.numel() for p in model.parameters())
    assert facts.weights_bytes == sum(p.stat().st_size for p in folder.glob("*.safetensors"))


def test_a_wrappers_prefix_is_removed_and_said(host: Host, folder: Path) -> None:
    """FC-003."""
    original = gpt2(folder)

    def wrap(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors["module." + name] = tensors.pop(name)

    rewrite(folder / "model.safetensors", wrap)
    assert any("'module.'" in note for note in inspect(host, folder).notes)
    loaded = load_module(folder, "text-generation")
    assert (logits(loaded) == logits(original)).all()


def test_weights_of_another_model_are_refused_with_the_count(folder: Path) -> None:
    """FC-003: never a benchmark of random weights."""
    gpt2(folder)

    def rename(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors["other." + name] = tensors.pop(name)

    rewrite(folder / "model.safetensors", rename)
    with pytest.raises(ExperimentError, match=r"0 of \d+ weights matched"):
        load_module(folder, "text-generation")


@pytest.mark.parametrize("identical", [True, False])
def test_a_tensor_in_two_shards_counts_once_or_is_refused(host: Host, folder: Path, identical: bool) -> None:
    """FC-061."""
    model = llama(folder, max_shard_size="40KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    name = "model.layers.0.mlp.up_proj.weight"
    other = next(file for file in sorted(set(index.values())) if file != index[name])
    value = model.state_dict()[name]

    def copy(tensors: dict[str, Any]) -> None:
        tensors[name] = value.clone() if identical else value.clone().fill_(1.0)

    rewrite(folder / other, copy)
    if identical:
        assert inspect(host, folder).parameters == sum(p.numel() for p in model.parameters())
        assert (logits(load_module(folder, "text-generation")) == logits(model)).all()
    else:
        message = refusal(host, folder)
        assert f"tensor {name!r} is stored twice, differing" in message and other in message


def test_cut_off_and_overlong_files_are_refused_with_both_sizes(host: Host, folder: Path) -> None:
    """FC-063."""
    gpt2(folder)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for content in (whole[:-100], whole + b"\0" * 100):
        file.write_bytes(content)
        message = refusal(host, folder)
        assert f"expected {len(whole):,} bytes from the header, the file has {len(content):,}" in message
    for content in (whole[:5], b"", b"\xff" * 64, (20).to_bytes(8, "little") + b"{" * 20):
        file.write_bytes(content)
        assert "safetensors" in refusal(host, folder)


def test_an_unknown_type_is_refused_and_its_code_never_runs(host: Host, folder: Path, tmp_path: Path) -> None:
    """FC-067."""
    gpt2(folder)
    trap = tmp_path / "ran"
    (folder / "modeling_x.py").write_text(f"open({str(trap)!r}, 'w')")
    config = {"model_type": "tinyllm", "architectures": ["TinyllmForCausalLM"], "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(config))
    message = refusal(host, folder)
    assert "model_type 'tinyllm' is unknown to the installed transformers 4." in message
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "modeling_x.Tiny"}}))
    assert "the folder's own code (modeling_x.Tiny) is never run" in refusal(host, folder)
    known = {**config, "model_type": "gpt2", "auto_map": {"AutoModelForCausalLM": "modeling_x.Tiny"}}
    (folder / "config.json").write_text(json.dumps({**known, "architectures": ["GPT2LMHeadModel"]}))
    assert any("never run" in note for note in inspect(host, folder).notes)
    with pytest.raises(ExperimentError):
        load_module(folder, "text-generation")  # sizes in this config are not the file's
    assert not trap.exists()


def test_the_task_comes_from_the_architecture_or_is_asked_for(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FC-079: no connection is ever made."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    calls: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: calls.append(address))
    decoder, encoder, bare = tmp_path / "decoder", tmp_path / "encoder", tmp_path / "bare"
    llama(decoder)
    classifier(encoder)
    llama(bare)
    config = json.loads((bare / "config.json").read_text())
    del config["architectures"]
    (bare / "config.json").write_text(json.dumps(config))
    assert inspect(host, decoder).task == "text-generation"
    assert inspect(host, encoder).task == "text-classification"
    with pytest.raises(ExperimentError, match=r"choose a task: .*text-generation") as caught:
        resolve_task(spec_of(bare), inspect(host, bare))
    assert caught.value.failure.field == "task"
    assert resolve_task(spec_of(bare, task="text-generation"), inspect(host, bare)) == "text-generation"
    load_module(bare, "text-generation")
    with pytest.raises(ExperimentError, match="weights matched"):
        load_module(bare, "text-classification")
    assert calls == []


def test_a_tie_that_the_file_contradicts_is_refused(host: Host, folder: Path) -> None:
    """FC-021, second: tensors are compared, not the flag."""
    llama(folder, tied=False)
    assert not inspect(host, folder).tied_embeddings
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    assert "embeddings differ, cannot share" in refusal(host, folder)


def test_tied_weights_are_counted_once(host: Host, folder: Path) -> None:
    model = llama(folder, tied=True)
    facts = inspect(host, folder)
    assert facts.tied_embeddings and facts.parameters == sum(p.numel() for p in model.parameters())

    def repeat(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    rewrite(folder / "model.safetensors", repeat)
    again = inspect(host, folder)
    assert again.parameters == facts.parameters
    assert any("counted once" in note for note in again.notes)


def test_pickle_is_never_opened(host: Host, folder: Path) -> None:
    gpt2(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "only as pytorch_model.bin, a format that can run code" in refusal(host, folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model_type": 3}'])
def test_broken_configs_are_refused(host: Host, folder: Path, content: str) -> None:
    gpt2(folder)
    (folder / "config.json").write_text(content)
    assert "config.json" in refusal(host, folder)


def test_folders_that_hold_no_model_say_what_they_hold(host: Host, folder: Path) -> None:
    assert "no config.json" in refusal(host, folder)
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter" in refusal(host, folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "adapter_config.json").unlink()
    assert "no weights" in refusal(host, folder)
    assert "nothing at" in refusal(host, folder / "absent")


def test_links_out_of_the_allowed_folders_are_refused(tmp_path: Path) -> None:
    roots, outside = tmp_path / "roots", tmp_path / "outside"
    gpt2(outside)
    gpt2(roots / "model")
    host = Host(cache=tmp_path / "cache", path_roots=(roots,))
    assert inspect(host, roots / "model").model_type == "gpt2"
    assert "outside the folders" in refusal(host, outside)
    (roots / "model" / "model.safetensors").unlink()
    (roots / "model" / "model.safetensors").symlink_to(outside / "model.safetensors")
    assert "link that leads out" in refusal(host, roots / "model")


def test_an_old_tokenizer_is_converted_once(host: Host, folder: Path) -> None:
    classifier(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    (folder / "vocab.txt").write_text("\n".join(words))
    source = PathModel(path=str(folder))
    assert source.ready(host) is None
    made = source.fetch(host)
    assert made != folder and source.ready(host) == made == source.fetch(host)
    from experiments.parts.tokenizer import load_tokenizer

    assert load_tokenizer(made).encode("Good film").tokens == ["[CLS]", "good", "film", "[SEP]"]
    assert load_module(made, "text-classification") is not None


def test_a_text_model_without_any_tokenizer_is_refused(host: Host, folder: Path) -> None:
    classifier(folder)
    with pytest.raises(ExperimentError, match="has no tokenizer"):
        PathModel(path=str(folder)).fetch(host)
