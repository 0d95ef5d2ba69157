"""Small randomly initialised models with their tokenizers, saved as Hugging Face folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def tokenizer_of(folder: Path, words: Sequence[str], *, special: bool) -> int:
    """Write a word-level tokenizer; returns the vocabulary's size. ``special`` adds [CLS] and [SEP] to every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {name: i for i, name in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]")
    fast.save_pretrained(folder)
    return len(vocabulary)


def tiny_classifier(folder: Path, words: Sequence[str], labels: Sequence[str]) -> Path:
    """A two-layer BERT classifier of width 32."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    folder.mkdir(parents=True, exist_ok=True)
    size = tokenizer_of(folder, words, special=True)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        id2label=dict(enumerate(labels)),
        label2id={name: i for i, name in enumerate(labels)},
        pad_token_id=0,
    )
    model = BertForSequenceClassification(config)
    # Logits far enough apart that classes differ between texts.
    torch.nn.init.normal_(model.classifier.weight, std=2.0)
    model.save_pretrained(folder)
    return folder


def tiny_decoder(folder: Path, words: Sequence[str]) -> Path:
    """A two-layer Llama of width 32 with grouped-query attention."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    size = tokenizer_of(folder, words, special=False)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
