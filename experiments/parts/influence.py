"""How much each block of a model changes what passes through it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind


def block_influence(module: Any, blocks: Any, context: BuildContext, *, samples: int) -> list[float]:
    """1 - mean cosine between a block's input and output, over the tokens of the calibration rows; one a block.

    Source: "Block Influence" of Men et al., ShortGPT, arXiv:2403.03853, equation 1. Padding is left out.

    Raises:
        ExperimentError: ``bad_dataset`` if there are no calibration rows, ``canary`` if a cosine is not finite.
    """

    def make(folder: Path) -> None:
        (folder / "influence.json").write_text(json.dumps(_measured(module, blocks, context, samples)))

    folder = context.remember("block influence", {"samples": samples, "length": context.sequence_length}, make)
    found: list[float] = json.loads((folder / "influence.json").read_text())
    return found


def _measured(module: Any, blocks: Any, context: BuildContext, samples: int) -> list[float]:
    import torch

    from experiments.parts.calibration import calibration_batches

    sums = [0.0] * len(blocks)
    tokens = [0] * len(blocks)
    mask: list[Any] = [None]

    def hook(number: int) -> Any:
        def after(block: Any, arguments: Any, named: Any, output: Any) -> None:
            into = arguments[0] if arguments else named["hidden_states"]
            out = output[0] if isinstance(output, tuple) else output
            cosines = torch.nn.functional.cosine_similarity(into.float(), out.float(), dim=-1)
            if mask[0] is not None and mask[0].shape == cosines.shape:
                cosines = cosines[mask[0].bool()]
            sums[number] += float(cosines.double().sum())
            tokens[number] += cosines.numel()

        return after

    handles = [block.register_forward_hook(hook(n), with_kwargs=True) for n, block in enumerate(blocks)]
    no_cache = {"use_cache": False} if context.task == "text-generation" else {}
    batches = list(calibration_batches(context, samples))
    try:
        with torch.inference_mode():
            for position, batch in enumerate(batches):
                mask[0] = batch.get("attention_mask")
                module.eval()(**batch, **no_cache)
                context.progress((position + 1) / len(batches))
    finally:
        for handle in handles:
            handle.remove()
    found = [1 - total / count for total, count in zip(sums, tokens, strict=True)]
    if any(value != value for value in found):
        worst = next(n for n, value in enumerate(found) if value != value)
        raise ExperimentError(
            FailureKind.CANARY,
            f"what block {worst} gives on the calibration rows is not finite",
            fix="Look at the model's own float32 run first.",
        )
    return found
