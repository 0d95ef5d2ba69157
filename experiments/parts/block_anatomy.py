"""Where the feed-forward neurons and the attention heads of a model's blocks are, by model type. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Anatomy:
    """One kind of transformer block; all names are relative to the base model or to a block.

    Attributes:
        blocks: list of the blocks in the base model.
        ffn_in: layers whose outputs are the neurons (two where a gate multiplies them).
        ffn_out: the layer that reads the neurons.
        ffn_width: name of the number of neurons in config.json.
        attention: the module that holds the heads.
        heads_in: its projections to queries, keys and values, relative to the block.
        fused: parts that each of ``heads_in`` holds side by side (3: query, key and value in one matrix).
        heads_out: the layer that reads the heads, relative to the block.
        heads_said_by: how config.json says fewer heads so that a plain ``from_pretrained`` builds them: by the counts
            of heads and of key-value heads with ``head_dim`` apart, or by ``pruned_heads``, layer by layer, where the
            width of a head would follow from its count.
    """

    blocks: str
    ffn_in: tuple[str, ...]
    ffn_out: str
    ffn_width: str
    attention: str
    heads_in: tuple[str, ...]
    heads_out: str
    fused: int = 1
    heads_said_by: Literal["counts", "pruned_heads"] = "pruned_heads"


_BERT = Anatomy(
    blocks="encoder.layer",
    ffn_in=("intermediate.dense",),
    ffn_out="output.dense",
    ffn_width="intermediate_size",
    attention="attention",
    heads_in=("attention.self.query", "attention.self.key", "attention.self.value"),
    heads_out="attention.output.dense",
)
_VIT = replace(
    _BERT,
    heads_in=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
)
_DISTILBERT = Anatomy(
    blocks="transformer.layer",
    ffn_in=("ffn.lin1",),
    ffn_out="ffn.lin2",
    ffn_width="hidden_dim",
    attention="attention",
    heads_in=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    heads_out="attention.out_lin",
)
_GPT2 = Anatomy(
    blocks="h",
    ffn_in=("mlp.c_fc",),
    ffn_out="mlp.c_proj",
    ffn_width="n_inner",
    attention="attn",
    heads_in=("attn.c_attn",),
    heads_out="attn.c_proj",
    fused=3,
)
_LLAMA = Anatomy(
    blocks="layers",
    ffn_in=("mlp.gate_proj", "mlp.up_proj"),
    ffn_out="mlp.down_proj",
    ffn_width="intermediate_size",
    attention="self_attn",
    heads_in=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    heads_out="self_attn.o_proj",
    heads_said_by="counts",
)

ANATOMIES: dict[str, Anatomy] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": _BERT,
    "vit": _VIT,
    "deit": _VIT,
    "distilbert": _DISTILBERT,
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
}


def head_units(heads: int, kv_heads: int) -> int:
    """How many equal parts attention can lose: groups of heads that share a key-value head, or single heads.

    Only whole groups go, so that heads stay a multiple of key-value heads; where one key-value head serves all, it
    stays and single heads go.
    """
    return heads if kv_heads == 1 else kv_heads


def removed_units(units: int, amount: float) -> int:
    """The whole number of ``units`` nearest to a share of ``amount``, at most all but one; a half removes fewer."""
    nearest = -int(-(units * amount - 0.5) // 1)  # round half down
    return min(max(nearest, 0), units - 1)


def remaining_neurons(width: int, amount: float, multiple: int) -> int:
    """Neurons that stay of ``width``: about ``1 - amount`` of them, a multiple of ``multiple`` where that is fewer."""
    rounded = round(width * (1 - amount) / multiple) * multiple
    return rounded if 0 < rounded < width else max(1, round(width * (1 - amount)))
