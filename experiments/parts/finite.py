"""Non-finite weights are named before they spoil a run (FC-005)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch


def non_finite_counts(module: torch.nn.Module) -> dict[str, int]:
    """Tensor name -> number of NaN and infinite values, for the tensors that have any."""
    import torch

    from experiments.parts.tied_weights import unique_tensors

    counts = {}
    for name, tensor in unique_tensors(module).items():
        # A sum over the tensor is one pass without a mask in memory; only a suspect pays for the exact count.
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
            counts[name] = int(tensor.numel() - torch.isfinite(tensor).sum())
    return counts


def in_words(counts: dict[str, int]) -> str:
    """E.g. ``model.layers.1.mlp.down_proj.weight (1 value)``, at most three names."""
    shown = [f"{name} ({n} value{'s' if n != 1 else ''})" for name, n in list(counts.items())[:3]]
    more = f" and {len(counts) - 3} more tensors" if len(counts) > 3 else ""
    return ", ".join(shown) + more


def require_finite(module: torch.nn.Module) -> None:
    """Refuse a module with NaN or infinite weights.

    Raises:
        ExperimentError: ``bad_model`` naming the tensors and how many values.
    """
    counts = non_finite_counts(module)
    if counts:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"the model has non-finite weights: {in_words(counts)}",
            fix="Train or convert the model again; no step can repair such weights.",
            tensors=counts,
        )
