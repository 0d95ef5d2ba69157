"""What a step changed and what it kept, in words: clauses divided by '; '."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.records import ExperimentError, FailureKind


def first_clause(summary: str) -> tuple[str, str]:
    """The first clause and the rest; what stands in parentheses is never cut."""
    depth = 0
    for at, character in enumerate(summary):
        depth += (character == "(") - (character == ")")
        if depth == 0 and summary.startswith("; ", at):
            return summary[:at], summary[at + 2 :]
    return summary, ""


def kept_in_words(kept: Mapping[str, str]) -> str:
    """E.g. ``, 1 kept (lm_head: shares its tensor ...)``; only the first is spelled out."""
    if not kept:
        return ""
    name, reason = next(iter(kept.items()))
    more = f", and {len(kept) - 1} more" if len(kept) > 1 else ""
    return f", {len(kept)} kept ({name}: {reason}{more})"


def no_layer_quantized(technique: str, total: int, kept: Mapping[str, str], fix: str | None = None) -> ExperimentError:
    """The failure ``no_effect`` of a quantizer that left all ``total`` layers wide, with the first of their reasons."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in list(kept.items())[:3]) or "it has none"
    return ExperimentError(
        FailureKind.NO_EFFECT,
        f"{technique} changed nothing: 0 of {total} linear layers quantized ({reasons})",
        fix=fix or f"Name fewer layers in keep, or remove {technique} from the recipe.",
    )
