"""Which conditions differ between the numbers of one table, in words."""

from __future__ import annotations

from collections import Counter
from typing import Any

from experiments.records import Report


def differences(reports: tuple[Report, ...]) -> list[str]:
    """One sentence per condition that is not the same for all experiments; empty if all are comparable."""
    facts = {r.experiment: r.environment.compared() for r in reports if r.environment is not None}
    sentences = []
    for condition in next(iter(facts.values()), {}):
        seen = {name: fact[condition] for name, fact in facts.items()}
        usual = Counter(repr(value) for value in seen.values()).most_common(1)[0][0]
        expected = next(value for value in seen.values() if repr(value) == usual)
        for name, value in seen.items():
            if repr(value) != usual:
                sentences.append(f"{name}: {condition} {_how(value, expected)}")
    return sentences


def _how(value: Any, usual: Any) -> str:
    if isinstance(value, dict) and isinstance(usual, dict):
        changed = [
            f"{key} {value.get(key, 'absent')} instead of {usual.get(key, 'absent')}"
            for key in sorted({*value, *usual})
            if value.get(key) != usual.get(key)
        ]
        return ", ".join(changed)
    return f"{_short(value)} instead of {_short(usual)}"


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    if isinstance(value, list | tuple):
        return " / ".join(_short(v) for v in value) or "none"
    return str(value)
