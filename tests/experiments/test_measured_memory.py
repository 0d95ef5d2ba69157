"""A process's peak is its own: what was measured before it leaves no mark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.launch import Child, Events, Limits
from experiments.runtimes.torch_eager import TorchEager
from tests.experiments.building import context

LARGE_VOCABULARY = 4_000_000  # 512 MB of embeddings at width 32


def artifact(folder: Path, vocabulary: int) -> Path:
    """A saved classifier whose size is its embedding table."""
    from transformers import BertConfig, BertForSequenceClassification
    from transformers.modeling_utils import no_init_weights

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    with no_init_weights():
        module = BertForSequenceClassification(config).eval()
    folder.mkdir()
    TorchEager().save(module, folder, context(folder.with_name(f"{folder.name}-build"), "text-classification"), ())
    return folder


def requests(folder: Path) -> Path:
    """A pack of nothing but requests."""
    folder.mkdir()
    ids = np.random.default_rng(0).integers(0, 100, (4, 16))
    np.save(folder / "work_input_ids.npy", ids)
    np.save(folder / "work_attention_mask.npy", np.ones_like(ids))
    return folder


def peak(artifact: Path, pack: Path) -> int:
    with Child("measure", Events(lambda event: None), Limits(300, None)) as child:
        child.call(
            "open",
            folder=str(artifact),
            runtime={"kind": "torch-eager"},
            device="cpu",
            threads=2,
            pack=str(pack),
            task="text-classification",
            new_tokens=2,
        )
        child.call("warm", batch_size=1, seconds=0.1)
        reading = child.call("memory")
    assert reading["children"] == 0
    return int(reading["rss_tree_peak"])


def test_a_small_run_after_a_large_one_has_the_small_ones_peak(tmp_path: Path) -> None:
    """FC-041: both orders give the same peaks, since each is measured in a fresh process."""
    small, large = artifact(tmp_path / "small", 1_000), artifact(tmp_path / "large", LARGE_VOCABULARY)
    pack = requests(tmp_path / "pack")
    before = peak(small, pack)
    big = peak(large, pack)
    after = peak(small, pack)
    assert big - before > 400e6
    assert after == pytest.approx(before, rel=0.1)
