"""AWQ: input channels that matter are scaled up before rounding, and their inputs down by as much.

Lin et al., AWQ, arXiv:2306.00978.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.parts.block_codes import Grid, round_to_nearest
from experiments.parts.gptq import output_error

if TYPE_CHECKING:
    import torch

    from experiments.parts.calibration import LayerInputs

#: Exponents that are tried: 0 (no scaling) to 0.95; output channels, spread over a layer, that they are judged by.
STEPS, ROWS = 20, 512


def channel_scales(weights: Sequence[torch.Tensor], inputs: LayerInputs, grid: Grid) -> torch.Tensor | None:
    """One factor per input channel, (in,) float32, for layers that read the same input; None where 1 is best.

    Weights (out, in) are multiplied by it before rounding, and inputs divided by it. It is ``mean|x| ^ a``, with the
    exponent ``a`` out of 20 for which the rounded layers' outputs differ least on the calibration inputs.
    """
    import torch

    judged = [w[:: max(1, len(w) // ROWS)].float() for w in weights]
    magnitude = inputs.mean_abs.clamp(min=1e-4 * float(inputs.mean_abs.mean()) + 1e-12)
    best, chosen = float("inf"), None
    for step in range(STEPS):
        scales = magnitude.pow(step / STEPS)
        scales = scales / (scales.max() * scales.min()).sqrt()
        error = sum(output_error(round_to_nearest(w * scales, grid).wide() / scales - w, inputs.moment) for w in judged)
        if error < best:
            best, chosen = error, scales if step else None
    return None if chosen is None else chosen.to(torch.float32)
