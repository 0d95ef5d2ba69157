"""Removes feed-forward neurons and attention heads for good, equally many in every block, and says so in the config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from experiments.parts.block_anatomy import ANATOMIES, Anatomy, head_units, remaining_neurons, removed_units
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch

    #: Name of a layer -> L2 norms (in,) of its inputs over the calibration rows.
    Norms = Callable[[str], torch.Tensor]

Part = Literal["ffn", "heads"]


@dataclass(frozen=True)
class Removed:
    """What one part of a model lost: ``before`` and ``after`` are numbers of ``what``, in each ``where``.

    ``reason`` says why nothing was removed.
    """

    what: str
    before: int
    after: int
    reason: str = ""
    where: str = "each block"

    def words(self) -> str:
        """E.g. '1,536 -> 1,072 neurons in each block'."""
        return f"{self.before:,} -> {self.after:,} {self.what} in {self.where}"


def prune_blocks(
    module: Any, amount: float, parts: Sequence[Part], multiple: int, norms: Norms | None
) -> list[Removed]:
    """Remove the least important share ``amount`` of each of ``parts`` from every block of ``module``, in place.

    Importance of a neuron or head: the L2 norm of all weights that make or read it (``norms`` None), or the norm of
    what it passed on over the calibration rows: input norm times the norm of the weights that read it, as
    Sun et al., arXiv:2306.11695, score single weights.

    Raises:
        ExperimentError: ``unsupported`` for a model type whose blocks are not known.
    """
    anatomy = ANATOMIES.get(module.config.model_type)
    if anatomy is None:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"the neurons and heads of model type '{module.config.model_type}' are not known",
            fix=f"Choose a model of type {', '.join(ANATOMIES)}, or prune-magnitude.",
            field="recipe",
        )
    removed = []
    if "ffn" in parts:
        removed.append(_prune_neurons(module, anatomy, amount, multiple, norms))
    if "heads" in parts:
        removed.append(_prune_heads(module, anatomy, amount, norms))
    return removed


def _blocks(module: Any, anatomy: Anatomy) -> list[tuple[str, Any]]:
    """(name in ``module``, block) of every block."""
    blocks = module.base_model.get_submodule(anatomy.blocks)
    names = {id(child): name for name, child in module.named_modules()}
    return [(names[id(block)], block) for block in blocks]


def _prune_neurons(module: Any, anatomy: Anatomy, amount: float, multiple: int, norms: Norms | None) -> Removed:
    from experiments.parts.slicing import keep_inputs, keep_outputs

    blocks = _blocks(module, anatomy)
    width = _inputs(blocks[0][1].get_submodule(anatomy.ffn_out))
    stay = remaining_neurons(width, amount, multiple)
    if stay == width:
        return Removed("neurons", width, width, f"{amount:.0%} of {width} neurons is less than one")
    for name, block in blocks:
        out = block.get_submodule(anatomy.ffn_out)
        into = [block.get_submodule(part) for part in anatomy.ffn_in]
        seen = norms(f"{name}.{anatomy.ffn_out}") if norms else None
        index = _most_important(_importance(into, out, width, 1, seen), stay)
        for layer in into:
            keep_outputs(layer, index)
        keep_inputs(out, index)
    setattr(module.config, anatomy.ffn_width, stay)
    return Removed("neurons", width, stay)


def _prune_heads(module: Any, anatomy: Anatomy, amount: float, norms: Norms | None) -> Removed:
    blocks = _blocks(module, anatomy)
    config = module.config
    heads, kv_heads = _heads_now(config)
    units = head_units(heads, kv_heads)
    gone = removed_units(units, amount)
    if not gone:
        unit = "heads" if units == heads else f"groups of {heads // units} heads that share a key-value head"
        could = ", ".join(f"{k / units:.2g}" for k in range(1, units)) or "none"
        return Removed("heads", heads, heads, f"{amount:.0%} of {units} {unit} is less than one; amounts: {could}")
    kept = []
    for name, block in blocks:
        out = block.get_submodule(anatomy.heads_out)
        into = [block.get_submodule(part) for part in anatomy.heads_in]
        if kv_heads == 1 < heads:
            into = into[:1]  # the one key-value head serves all and stays
        seen = norms(f"{name}.{anatomy.heads_out}") if norms else None
        kept.append(_most_important(_importance(into, out, units, anatomy.fused, seen), units - gone))
    left = heads * (units - gone) // units
    if anatomy.heads_said_by == "pruned_heads":
        _remove_by_name(module, kept, units)
    else:
        _remove_by_count(module, anatomy, kept, heads, kv_heads)
    return Removed("heads", heads, left)


def _heads_now(config: Any) -> tuple[int, int]:
    """Heads and key-value heads of a block, those that an earlier step removed by name not counted."""
    heads = int(config.num_attention_heads)
    heads -= max((len(gone) for gone in (getattr(config, "pruned_heads", None) or {}).values()), default=0)
    return heads, int(getattr(config, "num_key_value_heads", None) or heads)


def _remove_by_name(module: Any, kept: list[torch.Tensor], units: int) -> None:
    """By transformers' own pruning, which config.json records as ``pruned_heads`` in the original numbering."""
    config = module.config
    names: dict[int, list[int]] = {}
    for number, index in enumerate(kept):
        gone_before = set((config.pruned_heads or {}).get(number, ()))
        alive = [head for head in range(config.num_attention_heads) if head not in gone_before]
        names[number] = [alive[unit] for unit in range(units) if unit not in set(index.tolist())]
    module.prune_heads(names)
    config.pruned_heads = {number: sorted(gone) for number, gone in config.pruned_heads.items()}


def _remove_by_count(module: Any, anatomy: Anatomy, kept: list[torch.Tensor], heads: int, kv_heads: int) -> None:
    """By slicing; the width of a head stays what it was and is written apart."""
    from experiments.parts.slicing import keep_inputs, keep_outputs

    blocks = _blocks(module, anatomy)
    units = head_units(heads, kv_heads)
    width = _inputs(blocks[0][1].get_submodule(anatomy.heads_out)) // heads
    stay = len(kept[0])
    left = heads * stay // units
    left_kv = 1 if kv_heads == 1 else stay
    for (_, block), index in zip(blocks, kept, strict=True):
        rows = _spread(index, heads // units * width)
        query, *key_value = (block.get_submodule(part) for part in anatomy.heads_in)
        keep_outputs(query, rows)
        keep_inputs(block.get_submodule(anatomy.heads_out), rows)
        if kv_heads > 1:
            for layer in key_value:
                keep_outputs(layer, _spread(index, width))
        attention = block.get_submodule(anatomy.attention)
        for attribute, value in (
            ("num_heads", left),
            ("num_key_value_heads", left_kv),
            ("num_key_value_groups", left // left_kv),
        ):
            if hasattr(attention, attribute):
                setattr(attention, attribute, value)
    config = module.config
    config.head_dim, config.num_attention_heads, config.num_key_value_heads = width, left, left_kv


def _importance(into: list[Any], out: Any, units: int, fused: int, norms: torch.Tensor | None) -> torch.Tensor:
    """(units,) scores: the larger, the more the model would miss the unit."""
    from experiments.parts.slicing import weight_of

    reads = weight_of(out).float().t()  # (in, out)
    if norms is not None:
        return (reads.norm(dim=1) * norms).square().reshape(units, -1).sum(1).sqrt()
    total = reads.square().reshape(units, -1).sum(1)
    for layer in into:
        total += weight_of(layer).float().square().reshape(fused, units, -1).sum((0, 2))
    return total.sqrt()


def _most_important(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Ascending indices of the ``count`` largest scores; of equal ones those that come first."""
    return scores.argsort(descending=True, stable=True)[:count].sort().values


def _spread(index: torch.Tensor, width: int) -> torch.Tensor:
    """Indices of all values of the units ``index``, ``width`` values each."""
    import torch

    return (index[:, None] * width + torch.arange(width)).reshape(-1)


def _inputs(layer: Any) -> int:
    from experiments.parts.slicing import weight_of

    return int(weight_of(layer).shape[1])
