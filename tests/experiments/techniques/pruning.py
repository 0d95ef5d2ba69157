"""What tests of pruning share: calibration rows for a model in memory, and counts of zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.parts.linear_layers import linear_layers
from experiments.protocols import BuildContext, Examples, Task, Use
from tests.experiments.building import context
from tests.experiments.tiny_models import tokenizer_of

WORDS = [f"w{n}" for n in range(40)]
TEXTS = tuple(" ".join(WORDS[(n * k + k // 7) % 40] for k in range(1, 26)) for n in range(1, 24))


def calibrating(folder: Path, task: Task, texts: tuple[str, ...] = TEXTS) -> BuildContext:
    """A context whose calibration rows are ``texts``, for any model with a vocabulary of at least 44 words."""

    def rows(use: Use, limit: int | None = None) -> Examples:
        assert use == "calibration"
        return Examples("tiny", "sha", texts=texts[:limit], total=len(texts))

    source = folder / "tokenizer"
    if not source.is_dir():
        source.mkdir(parents=True)
        tokenizer_of(source, WORDS, special=task != "text-generation")
    return context(folder, task, source=source, rows=rows)


def zero_shares(module: Any) -> dict[str, float]:
    """Layer name -> share of its weights that are zero."""
    return {layer.name: float((layer.weight == 0).float().mean()) for layer in linear_layers(module)[0]}


def distilbert() -> Any:
    """A random classifier of width 32 and two layers."""
    import torch
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=200, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64)
    return DistilBertForSequenceClassification(config).eval()


def qwen2(**changes: Any) -> Any:
    """FC-023's model: hidden 64, 4 heads over 2 key-value heads of 16, 128 neurons."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    settings = {
        "vocab_size": 200,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return Qwen2ForCausalLM(Qwen2Config(**{**settings, **changes})).eval()


def graph_of(module: Any, folder: Path, ctx: BuildContext) -> Any:
    """The module exported into ``folder`` and opened again by ONNX Runtime."""
    from experiments.runtimes.onnxruntime import OnnxRuntime

    folder.mkdir()
    OnnxRuntime().save(module, folder, ctx, ())
    OnnxRuntime().finish(folder, ctx)
    return OnnxRuntime().open(folder, "cpu", 1)
