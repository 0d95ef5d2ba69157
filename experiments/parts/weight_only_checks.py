"""What weight-only quantizers refuse before anything is built, and the group sizes they offer. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.parts.weight_only import WeightOnly
from experiments.protocols import Ask, ModelFacts

#: Groups that PyTorch's 4-bit kernel takes.
TORCH_GROUPS = (32, 64, 128, 256)


def refuse_weight_only(ask: Ask, how: WeightOnly) -> str | None:
    """Why these settings can't be served, with what to choose instead, or None."""
    facts = ask.model
    if facts is not None and facts.quantized:
        return f"{facts.name} is already quantized ({facts.quantized}); choose its unquantized original"
    if how.method == "hqq" and how.grid.bits == 8:
        return "hqq is for 4 bits"
    if ask.runtime.form != "torch":
        return None
    if ask.device != "cpu":
        return (
            f"{how.technique} has only CPU kernels for torch modules; choose onnxruntime, whose MatMulNBits runs "
            "on cuda too, or resources.device: cpu"
        )
    if how.grid.bits == 4:
        return _refuse_torch_4bit(how, facts)
    return None


def _refuse_torch_4bit(how: WeightOnly, facts: ModelFacts | None) -> str | None:
    if how.head == "shared-codes":
        return "PyTorch has no 4-bit lookup for head: shared-codes; choose own-codes, or runtime onnxruntime"
    fitting = valid_groups(facts, TORCH_GROUPS) if facts is not None else list(TORCH_GROUPS)
    if how.grid.group in fitting:
        return None
    choose = f"choose group_size {', '.join(map(str, fitting))}" if fitting else "choose int8-weight-only"
    if how.grid.group not in TORCH_GROUPS:
        return f"PyTorch's 4-bit kernel takes no group of {how.grid.group}; {choose}, or runtime onnxruntime"
    width = facts.hidden_size if facts is not None else None
    return f"group_size {how.grid.group} does not divide the model's width of {width}; {choose}, or runtime onnxruntime"


def valid_groups(facts: ModelFacts, groups: Sequence[int]) -> list[int]:
    """Those of ``groups`` that divide the model's width; all, where it is not known."""
    return [group for group in groups if not facts.hidden_size or facts.hidden_size % group == 0]
