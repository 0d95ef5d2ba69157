"""Summaries of what a step changed: clauses divided by '; '."""

from __future__ import annotations


def first_clause(summary: str) -> tuple[str, str]:
    """The first clause and the rest; what stands in parentheses is never cut."""
    depth = 0
    for at, character in enumerate(summary):
        depth += (character == "(") - (character == ")")
        if depth == 0 and summary.startswith("; ", at):
            return summary[:at], summary[at + 2 :]
    return summary, ""
