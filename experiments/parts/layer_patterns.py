"""Which layers a pattern names: the same patterns for torch modules and for nodes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from experiments.records import ExperimentError, FailureKind


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Names that ``pattern`` (shell wildcards) matches whole or from a dot on: 'lm_head', 'layers.0.*', '*.down_proj'.

    'down_proj' alone matches every layer whose name ends in '.down_proj'.
    """
    return [name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")]


def matched(patterns: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Name -> the pattern that named it.

    Raises:
        ExperimentError: ``unsupported`` if a pattern names no layer: a typo must not quietly change what is kept.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        hits = matching(pattern, names)
        if not hits:
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise ExperimentError(
                FailureKind.UNSUPPORTED,
                f"'{pattern}' in keep matches none of the {len(names)} linear layers",
                fix=f"Layers of this model are: {some}." if some else "This model has no linear layers.",
                field="recipe.keep",
            )
        for name in hits:
            found.setdefault(name, pattern)
    return found
