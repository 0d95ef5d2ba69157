"""AWQ in a torch module: a factor is folded into the norm before, and tried, since only running tells who reads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.parts.awq import channel_scales
from experiments.parts.weight_only import Coder
from experiments.protocols import BuildContext

if TYPE_CHECKING:
    import torch

    from experiments.parts.linear_layers import LinearLayer

#: Largest relative change of the answers that counts as rounding, when a factor is folded.
TOLERANCE = 1e-4


def scale_channels(
    module: Any, layers: Sequence[LinearLayer], coder: Coder, context: BuildContext
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Layer -> factor of its weights; their inverse is its input scale, or already in the norm (then folded here).

    A folded factor is multiplied into ``layer.weight`` right away and is not among the factors returned.
    """
    groups: dict[str, list[LinearLayer]] = defaultdict(list)
    for layer in layers:
        inputs = coder.inputs(layer.name)
        if inputs is not None:
            groups[inputs.source].append(layer)
    example = _example(context)
    norms = _norms(module, layers, example)
    factors: dict[str, torch.Tensor] = {}
    folded = kept = 0
    for source, group in groups.items():
        inputs = coder.statistics[source]
        scales = channel_scales([layer.weight for layer in group], inputs, coder.how.grid)
        if scales is None:
            continue
        norm = norms.get(group[0].name)
        if norm is not None and _fold(module, norm, group, scales, example):
            folded += 1
        else:
            kept += 1
            factors |= {layer.name: scales for layer in group}
    return factors, [f"input factors: {folded} in norms, {kept} as input scales"]


def _example(context: BuildContext) -> dict[str, Any]:
    """One short calibration row."""
    from experiments.parts.calibration import calibration_batches

    batch = next(calibration_batches(context, 1))
    short = {name: tensor[:1, :16] if tensor.ndim == 2 else tensor[:1] for name, tensor in batch.items()}
    return short | ({"use_cache": False} if context.task == "text-generation" else {})


def _norms(module: Any, layers: Sequence[LinearLayer], example: dict[str, Any]) -> dict[str, Any]:
    """Layer -> the norm whose very output it is fed."""
    import torch

    made: list[tuple[Any, Any]] = []
    found: dict[str, Any] = {}

    def after(norm: Any, arguments: Any, output: Any) -> None:
        made.append((norm, output))

    def before(name: str) -> Any:
        def hook(layer: Any, arguments: Any) -> None:
            norm = next((norm for norm, output in made if output is arguments[0]), None)
            if norm is not None:
                found[name] = norm

        return hook

    handles = [m.register_forward_hook(after) for m in module.modules() if _is_norm(m)]
    handles += [layer.module.register_forward_pre_hook(before(layer.name)) for layer in layers]
    try:
        with torch.inference_mode():
            module(**example)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _is_norm(module: Any) -> bool:
    """True for LayerNorm and the RMSNorms of transformers: a gain (and shift) a channel, and nothing else."""
    own = dict(module.named_parameters(recurse=False))
    named = "norm" in type(module).__name__.lower()
    return named and "weight" in own and set(own) <= {"weight", "bias"} and own["weight"].ndim == 1


def _fold(module: Any, norm: Any, group: Sequence[LinearLayer], scales: torch.Tensor, example: dict[str, Any]) -> bool:
    """Divide the norm's parameters and multiply the layers' weights; undone, and False, if that changes the answers."""
    import torch

    parameters = [p for p in (norm.weight, getattr(norm, "bias", None)) if p is not None]
    if any(p.shape != scales.shape for p in parameters):
        return False
    tensors = [*parameters, *(layer.module.weight for layer in group)]
    was = [tensor.detach().clone() for tensor in tensors]
    before = _answer(module, example)
    with torch.no_grad():
        for parameter in parameters:
            parameter.div_(scales.to(parameter.dtype))
        for layer in group:
            layer.weight.mul_(scales.to(layer.weight.dtype))
    change = float((_answer(module, example) - before).norm() / before.norm().clamp(min=1e-12))
    if change <= TOLERANCE:
        return True
    with torch.no_grad():
        for tensor, old in zip(tensors, was, strict=True):
            tensor.copy_(old)
    return False


def _answer(module: Any, example: dict[str, Any]) -> torch.Tensor:
    import torch

    with torch.inference_mode():
        output = module(**example)
    first: torch.Tensor = output[0]
    return first.float()
