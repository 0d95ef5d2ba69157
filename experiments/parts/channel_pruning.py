"""Removes channels of convolutions, and everything that depends on them, by torch-pruning's dependency graph.

Source: Fang et al., DepGraph: Towards Any Structural Pruning, arXiv:2301.12900.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.records import ExperimentError, FailureKind


def prune_channels(module: Any, example: Any, remaining: Callable[[str, int], int]) -> dict[str, tuple[int, int]]:
    """Remove the channels with the smallest weights from every group of coupled convolutions of ``module``, in place.

    Normalisation layers follow, with their running statistics where they keep some. The outputs of linear layers (the
    classes) stay. Importance is the L2 norm of all weights of a channel, coupled layers included.

    Args:
        example: a batch of inputs, (1, channels, height, width).
        remaining: (name of a group's first convolution, its channels) -> channels that stay.

    Returns:
        Name of each group's first convolution -> channels before and after, where they differ.

    Raises:
        ExperimentError: ``unsupported`` if the graph of layers can't be followed.
    """
    import torch
    import torch_pruning

    names = {child: name for name, child in module.named_modules()}
    fixed = [child for child in names if isinstance(child, torch.nn.Linear)]
    try:
        graph = torch_pruning.DependencyGraph().build_dependency(module, example_inputs=example)
        groups = list(graph.get_all_groups(ignored_layers=fixed, root_module_types=(torch.nn.Conv2d,)))
    except Exception as error:  # tracing foreign code can fail in any way; each means: not prunable so
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"the layers of {type(module).__name__} depend on each other in a way that can't be followed: {error}",
            fix="Choose prune-magnitude for this model.",
            field="recipe",
        ) from error
    importance = torch_pruning.importance.GroupMagnitudeImportance(p=2)
    changed: dict[str, tuple[int, int]] = {}
    for group in groups:
        root = group[0].dep.target.module
        width = int(graph.get_out_channels(root))
        stay = remaining(names[root], width)
        if not 0 < stay < width:
            continue
        gone = importance(group).argsort(stable=True)[: width - stay].tolist()
        group.prune(idxs=gone)
        changed[names[root]] = (width, stay)
    return changed
