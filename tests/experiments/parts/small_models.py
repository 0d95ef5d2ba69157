"""Small random models without tokenizers, for what is wrong with weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def llama(folder: Path, *, tied: bool = False, **save: Any) -> Any:
    """A two-layer Llama of width 32, saved into ``folder``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=200,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder, **save)
    return model


def gpt2(folder: Path, **config: Any) -> Any:
    """A two-layer GPT-2 of width 32 without a padding token."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    made = GPT2Config(vocab_size=200, n_embd=32, n_layer=2, n_head=4, n_positions=64, **config)
    model = GPT2LMHeadModel(made).eval()
    model.save_pretrained(folder)
    return model


def classifier(folder: Path, **config: Any) -> Any:
    """A two-layer BERT classifier of width 32."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    made = BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        **config,
    )
    model = BertForSequenceClassification(made).eval()
    model.save_pretrained(folder)
    return model


def logits(model: Any) -> Any:
    """Logits of a fixed sentence of 12 tokens."""
    import torch

    with torch.inference_mode():
        return model(input_ids=torch.arange(5, 17)[None]).logits


def rewrite(file: Path, change: Any) -> None:
    """Load a safetensors file, let ``change`` alter the dict of tensors, save it again."""
    from safetensors.torch import load_file, save_file

    tensors = {name: value.clone() for name, value in load_file(file).items()}
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
