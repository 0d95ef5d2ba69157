"""Weight-only quantization of a torch module: swaps linear layers for packed ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.parts.weight_only import Coder, WeightOnly
from experiments.protocols import BuildContext
from experiments.records import StepEffect

if TYPE_CHECKING:
    import torch

    from experiments.parts.linear_layers import LinearLayer


def quantize_module(module: Any, how: WeightOnly, keep: Sequence[str], context: BuildContext) -> tuple[Any, StepEffect]:
    """Swap every linear layer of ``module`` for a packed one, except those in ``keep``.

    A tied output head (``how.head``): ``own-codes`` breaks the tie and gives it codes beside the float table,
    ``shared-codes`` (8 bits) packs the embedding with the same codes, ``float`` leaves both.

    Raises:
        ExperimentError: ``bad_model`` for non-finite weights, ``no_effect`` if no layer was left to swap,
            ``unsupported`` if a pattern in ``keep`` matches nothing.
    """
    from experiments.parts.finite import require_finite
    from experiments.parts.layer_patterns import matched
    from experiments.parts.linear_layers import linear_layers, swap
    from experiments.parts.summaries import kept_in_words, no_layer_quantized

    started = time.monotonic()
    require_finite(module)
    layers, kept = linear_layers(module)
    total = len(layers) + len(kept)
    kept |= {
        name: f"asked for by keep: '{pattern}'"
        for name, pattern in matched(keep, [layer.name for layer in layers]).items()
    }
    tied = _tied_layers(module, layers)
    kept |= {name: why for name, why in _left_tied(module, layers, tied, how.head).items() if name not in kept}
    for layer in layers:
        if layer.name not in kept and (why := _unfit(layer.weight, how)):
            kept[layer.name] = why
    narrow = [layer for layer in layers if layer.name not in kept]
    if not narrow:
        fix = f"Name fewer layers in keep, choose another group_size, or remove {how.technique} from the recipe."
        raise no_layer_quantized(how.technique, total, kept, fix)
    statistics: Mapping[str, Any] = {}
    if how.calibrates:
        from experiments.parts.calibration import input_statistics

        statistics = input_statistics(module, context, samples=how.samples)
    coder = Coder(how, statistics)
    factors, notes = _factors(module, narrow, tied, coder, context)
    for number, layer in enumerate(narrow):
        packed = _packed(layer, how, coder, factors.get(layer.name))
        swap(module, layer.name, packed)
        if layer.name in tied:
            notes.append(_untied(module, layer.name, tied[layer.name], packed, how))
        context.progress(0.5 + 0.5 * (number + 1) / len(narrow), f"{layer.name} stored in {how.grid.bits} bits")
    spread = f"one scale for {how.grid.group} weights" if how.grid.bits == 4 else "one scale an output channel"
    told = "; ".join([coder.in_words(), *notes, "products in bfloat16"])
    return module, StepEffect(
        technique=how.technique,
        summary=f"{len(narrow)} of {total} linear layers stored in {how.grid.bits} bits, "
        f"{spread}{kept_in_words(kept)}; {told}",
        changed=len(narrow),
        of=total,
        kept=kept,
        warnings=coder.warnings(),
        seconds=time.monotonic() - started,
    )


def _tied_layers(module: Any, layers: Sequence[LinearLayer]) -> dict[str, list[str]]:
    """Linear layer -> the other modules that hold its very weight."""
    from experiments.parts.tied_weights import first_names

    first = first_names({n: t for n, t in module.state_dict(keep_vars=True).items() if hasattr(t, "untyped_storage")})
    tied = {}
    for layer in layers:
        own = f"{layer.name}.weight"
        others = [n.rpartition(".")[0] for n, f in first.items() if f == first[own] and n != own]
        if others:
            tied[layer.name] = others
    return tied


def _left_tied(
    module: Any, layers: Sequence[LinearLayer], tied: Mapping[str, Sequence[str]], head: str
) -> dict[str, str]:
    """Tied layers that stay float, with the reason."""
    import torch

    left = {}
    for layer in layers:
        others = tied.get(layer.name, ())
        lookups = [o for o in others if isinstance(module.get_submodule(o), torch.nn.Embedding)]
        if head == "float" and others:
            left[layer.name] = f"shares its tensor with {others[0]}.weight; kept float, tie intact, counted once"
        elif len(lookups) != len(others):
            left[layer.name] = f"shares its tensor with {others[0]}.weight, which is no lookup; kept float, tie intact"
    return left


def _unfit(weight: torch.Tensor, how: WeightOnly) -> str | None:
    """Why torch's kernel can't take a matrix (out, in), or None."""
    out, width = weight.shape
    if how.grid.bits == 8:
        # It loads whole vectors: 16 values with AVX2, 32 with AVX-512, past the end of shorter rows.
        return None if width % 32 == 0 else f"its input width of {width} is no multiple of 32, which the kernel needs"
    if width % how.grid.group:
        return f"its input width of {width} is no multiple of the group of {how.grid.group}"
    return None if out % 16 == 0 else f"its output width of {out} is no multiple of 16, which the kernel needs"


def _packed(layer: LinearLayer, how: WeightOnly, coder: Coder, factor: torch.Tensor | None) -> Any:
    """The packed layer; ``factor``: what its weights are multiplied by and its inputs divided by."""
    import torch

    from experiments.parts.block_codes import Grid, codes_from, in_blocks
    from experiments.parts.weight_only_linear import WeightOnlyInt4Linear, WeightOnlyInt8Linear

    bias = None if layer.bias is None else layer.bias.detach().to(torch.float32)
    weight = layer.weight.detach().to(torch.float32)
    if how.grid.bits == 8:
        grid = Grid(bits=8, group=weight.shape[1], symmetric=True)
        coder.seen += 1
        blocks = in_blocks(weight, grid.group)
        scales, zeros = grid.scales_of(blocks)
        # The kernel holds scales in bfloat16: codes are made for the scale that it will use.
        codes = codes_from(blocks, scales.to(torch.bfloat16).to(torch.float32), zeros, weight.shape[1], grid)
        signed = (codes.codes.to(torch.int16) - grid.middle).to(torch.int8)
        return WeightOnlyInt8Linear(signed, codes.scales.squeeze(1), bias)
    made = coder.codes(layer.name, weight if factor is None else weight * factor)
    nibbles = made.codes[:, 0::2] | (made.codes[:, 1::2] << 4)
    inverse = None if factor is None or bool((factor == 1).all()) else 1 / factor
    return WeightOnlyInt4Linear(nibbles, made.scales, made.zeros, bias, inverse)


def _untied(module: Any, name: str, tables: Sequence[str], packed: Any, how: WeightOnly) -> str:
    """Settle what was tied to ``name``, which is packed now; what holds from here on, in words."""
    from experiments.parts.int8_embedding import Int8Embedding
    from experiments.parts.linear_layers import swap

    for config in {id(c): c for c in (module.config, module.config.get_text_config())}.values():
        config.tie_word_embeddings = False
    if how.head == "shared-codes":
        for table in tables:
            dtype = module.get_submodule(table).weight.dtype
            scales = packed.scales.float().unsqueeze(1)
            swap(module, table, Int8Embedding(packed.codes, scales, dtype))
        return f"{name} and {', '.join(tables)} share their codes"
    return f"{name} has codes of its own beside the float {tables[0]}: {packed.packed_bytes():,} bytes more"


def _factors(
    module: Any, narrow: Sequence[LinearLayer], tied: Mapping[str, Any], coder: Coder, context: BuildContext
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """AWQ's factor of every layer that has one, folded into norms where that is exact; and that in words."""
    if coder.how.method != "awq":
        return {}, []
    from experiments.parts.awq_module import scale_channels

    return scale_channels(module, narrow, coder, context)
