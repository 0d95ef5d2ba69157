"""Casting a model to a narrower floating-point format."""

from __future__ import annotations

import time
from typing import Any

from experiments.records import ExperimentError, FailureKind, StepEffect

#: The formats by their torch names, with the largest finite value for messages.
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}


def cast_module(module: Any, dtype: str, technique: str) -> tuple[Any, StepEffect]:
    """Cast all floating parameters and persistent buffers in place; ties are kept, each shared tensor is cast once.

    Buffers that are not saved (rotary frequencies) keep their format, as they do when the artifact is loaded again.

    Raises:
        ExperimentError: ``bad_model`` if the source has non-finite weights, ``canary`` if finite weights became
            non-finite, ``no_effect`` if everything already had this format.
    """
    import torch

    from experiments.parts.finite import in_words, non_finite_counts, require_finite

    started = time.monotonic()
    require_finite(module)
    wanted = getattr(torch, dtype)
    changed = total = 0
    with torch.no_grad():
        for parameter in module.parameters():  # a tied parameter is visited once, so the tie stays
            if parameter.is_floating_point():
                total += 1
                if parameter.dtype != wanted:
                    parameter.data = parameter.data.to(wanted)
                    changed += 1
        for owner in module.modules():
            for name, buffer in owner._buffers.items():
                saved = name not in owner._non_persistent_buffers_set
                if buffer is not None and saved and buffer.is_floating_point():
                    total += 1
                    if buffer.dtype != wanted:
                        owner._buffers[name] = buffer.to(wanted)
                        changed += 1
    if not changed:
        raise ExperimentError(
            FailureKind.NO_EFFECT,
            f"{technique} changed nothing: all {total} floating-point tensors already are {dtype}",
            fix=f"Remove {technique} from the recipe.",
        )
    overflowed = non_finite_counts(module)
    if overflowed:
        raise ExperimentError(
            FailureKind.CANARY,
            f"weights overflow in {dtype} (largest value {LARGEST[dtype]:.4g}): {in_words(overflowed)}",
            fix="Choose bf16, which has the range of float32." if dtype == "float16" else None,
            tensors=overflowed,
        )
    if hasattr(module, "config"):
        module.config.dtype = wanted
    summary = f"{changed} of {total} tensors cast to {dtype}"
    return module, StepEffect(
        technique=technique, summary=summary, changed=changed, of=total, seconds=time.monotonic() - started
    )
