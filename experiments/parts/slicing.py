"""Cuts outputs or inputs out of a linear layer, in place, in whichever of the two layouts its class stores them."""

from __future__ import annotations

from typing import Any

import torch


def keep_outputs(layer: Any, index: torch.Tensor) -> None:
    """Leave only the outputs ``index`` (ascending) of a ``Linear`` or ``Conv1D``; the bias follows."""
    layer.weight = _part(layer.weight, _output_dim(layer), index)
    if layer.bias is not None:
        layer.bias = _part(layer.bias, 0, index)
    _say(layer, outputs=len(index))


def keep_inputs(layer: Any, index: torch.Tensor) -> None:
    """Leave only the inputs ``index`` (ascending) of a ``Linear`` or ``Conv1D``."""
    layer.weight = _part(layer.weight, 1 - _output_dim(layer), index)
    _say(layer, inputs=len(index))


def weight_of(layer: Any) -> torch.Tensor:
    """Detached (out, in) weight of a ``Linear`` or ``Conv1D``."""
    weight: torch.Tensor = layer.weight.detach()
    return weight if _output_dim(layer) == 0 else weight.t()


def _output_dim(layer: Any) -> int:
    return 0 if isinstance(layer, torch.nn.Linear) else 1  # Conv1D stores (in, out)


def _part(parameter: Any, dim: int, index: torch.Tensor) -> torch.nn.Parameter:
    cut = parameter.detach().index_select(dim, index).contiguous()
    return torch.nn.Parameter(cut, requires_grad=parameter.requires_grad)


def _say(layer: Any, *, outputs: int | None = None, inputs: int | None = None) -> None:
    linear = isinstance(layer, torch.nn.Linear)
    if outputs is not None:
        setattr(layer, "out_features" if linear else "nf", outputs)
    if inputs is not None:
        setattr(layer, "in_features" if linear else "nx", inputs)
