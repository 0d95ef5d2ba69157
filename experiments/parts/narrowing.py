"""A narrower model cut out of a wide one: fewer heads, neurons and hidden dimensions, the most important ones kept."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from experiments.parts.block_anatomy import ANATOMIES, head_units
from experiments.parts.block_list import text_config
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    from experiments.parts.block_anatomy import Anatomy


@dataclass(frozen=True)
class Narrowed:
    """A narrower model and its sizes, in words."""

    module: Any
    said: str


def narrowed(module: Any, width: float) -> Narrowed:
    """A model of about ``width`` of the width of ``module``, with the weights that it shares with it.

    Kept are the hidden dimensions, and in each block the neurons and the groups of heads, whose weights have the
    largest sums of squares. Whole groups of heads go, and a head keeps its width.

    Raises:
        ExperimentError: ``unsupported`` for a type of model whose blocks are not known, or if no head would go.
    """
    config = text_config(module)
    anatomy = ANATOMIES.get(config.model_type)
    if anatomy is None:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"a narrower student of '{config.model_type}' can't be cut",
            fix=f"Choose fewer layers and leave width at 1. Widths work for {', '.join(sorted(ANATOMIES))}.",
            field="recipe.width",
        )
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    units = head_units(heads, kv_heads)
    kept = max(1, round(units * width))
    if kept == units:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"width {width:g} leaves all {heads} heads, so the student would be as wide as its teacher",
            fix=f"Choose a width of at most {(units - 1) / units:.3g}, or fewer layers.",
            field="recipe.width",
        )
    small = copy.deepcopy(module.config)
    inner = small.get_text_config() if hasattr(small, "get_text_config") else small
    inner.num_attention_heads = heads * kept // units
    if getattr(inner, "num_key_value_heads", None):
        inner.num_key_value_heads = max(1, kv_heads * kept // units)
    inner.hidden_size = int(config.hidden_size) * kept // units
    neurons = getattr(config, anatomy.ffn_width, None)
    if neurons:
        setattr(inner, anatomy.ffn_width, int(neurons) * kept // units)
    # Its random weights are all overwritten; they are drawn apart, so that nothing after depends on them.
    with torch.random.fork_rng(devices=[]):
        student = type(module)._from_config(small, dtype=module.dtype).eval()
    cut = _Cut(module, student, anatomy, units, kept)
    cut.copy()
    said = (
        f"{inner.num_attention_heads} of {heads} heads and {inner.hidden_size:,} of {config.hidden_size:,} hidden "
        "dimensions, those with the largest weights"
    )
    return Narrowed(student, said)


class _Cut:
    """Which rows and columns of a wide model's tensors the narrow one takes."""

    def __init__(self, wide: Any, narrow: Any, anatomy: Anatomy, units: int, kept: int) -> None:
        self._anatomy = anatomy
        self._units, self._kept = units, kept
        self._wide, self._narrow = wide.state_dict(), narrow.state_dict()
        self._transposed = frozenset(name for name, child in wide.named_modules() if type(child).__name__ == "Conv1D")
        self._axes = {name: self._axes_of(name) for name in self._wide}
        self._indices = self._choose()

    def copy(self) -> None:
        """Fill the narrow model."""
        with torch.no_grad():
            for name, target in self._narrow.items():
                value = self._wide[name]
                for dim, axis in enumerate(self._axes[name]):
                    if axis is not None:
                        value = value.index_select(dim, self._index(axis, value.shape[dim]))
                if value.shape != target.shape:
                    raise ExperimentError(
                        FailureKind.UNSUPPORTED,
                        f"{name} can't be narrowed: {tuple(value.shape)} is left, {tuple(target.shape)} is needed",
                        fix="Choose fewer layers and leave width at 1.",
                        field="recipe.width",
                    )
                target.copy_(value)

    def _axes_of(self, name: str) -> tuple[str | None, ...]:
        """For each dimension of a tensor what lies along it: ``residual``, ``neurons:<block>`` or ``heads:<block>``."""
        wide, narrow = self._wide[name], self._narrow[name]
        axes: list[str | None] = [
            "residual" if before != after else None for before, after in zip(wide.shape, narrow.shape, strict=True)
        ]
        owner, _, kind = name.rpartition(".")
        block, part = self._block_of(owner)
        if block is None:
            return tuple(axes)
        made, read = self._special(part, block)
        weight = kind == "weight"
        out, into = (1, 0) if owner in self._transposed else (0, 1)
        if made is not None:
            axes[out if weight else 0] = made
        if read is not None and weight:
            axes[into] = read
        return tuple(axes)

    def _block_of(self, owner: str) -> tuple[str | None, str]:
        _, mark, tail = f".{owner}".partition(f".{self._anatomy.blocks}.")
        number, _, part = tail.partition(".")
        return (number, part) if mark and number.isdigit() else (None, "")

    def _special(self, part: str, block: str) -> tuple[str | None, str | None]:
        """What a layer of a block makes and reads, where it is not the hidden state."""
        anatomy = self._anatomy
        if part in anatomy.ffn_in:
            return f"neurons:{block}", None
        if part == anatomy.ffn_out:
            return None, f"neurons:{block}"
        if part in anatomy.heads_in:
            return f"heads:{block}", None
        if part == anatomy.heads_out:
            return None, f"heads:{block}"
        return None, None

    def _choose(self) -> dict[str, torch.Tensor]:
        """Axis -> numbers of what stays along it: dimensions, neurons, or groups of heads, in rising order."""
        scores: dict[str, torch.Tensor] = {}
        sizes: dict[str, int] = {}
        for name, axes in self._axes.items():
            value = self._wide[name].double().square()
            for dim, axis in enumerate(axes):
                if axis is None:
                    continue
                along = value.movedim(dim, 0).reshape(value.shape[dim], -1).sum(dim=1)
                if axis.startswith("heads:"):
                    parts = self._fused(axis, len(along))
                    along = along.reshape(parts, self._units, -1).sum(dim=(0, 2))
                    sizes[axis] = self._kept
                else:
                    sizes[axis] = self._narrow[name].shape[dim]
                scores[axis] = scores[axis] + along if axis in scores else along
        return {axis: score.topk(sizes[axis]).indices.sort().values for axis, score in scores.items()}

    def _fused(self, axis: str, size: int) -> int:
        """How many matrices of heads lie side by side along an axis of ``size``."""
        fused = self._anatomy.fused
        if fused == 1:
            return 1
        block = axis.partition(":")[2]
        read = next(
            tensor.shape[dim]
            for name, tensor in self._wide.items()
            for dim, found in enumerate(self._axes[name])
            if found == axis and self._block_of(name.rpartition(".")[0]) == (block, self._anatomy.heads_out)
        )
        return size // int(read)

    def _index(self, axis: str, size: int) -> torch.Tensor:
        chosen = self._indices[axis]
        if not axis.startswith("heads:"):
            return chosen
        parts = self._fused(axis, size)
        each = size // parts // self._units
        within = (chosen[:, None] * each + torch.arange(each)).reshape(-1)
        return torch.cat([within + part * (size // parts) for part in range(parts)])
