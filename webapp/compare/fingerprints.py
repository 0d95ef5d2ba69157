"""Which conditions differ between the numbers of one table, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from experiments.records import Report


def differences(reports: tuple[Report, ...]) -> list[str]:
    """One sentence per experiment and condition that is not the usual one; empty if all are comparable.

    Of libraries only those count that both sides use: another runtime brings its own, and that is no difference.
    """
    facts = {r.experiment: r.environment.compared() for r in reports if r.environment is not None}
    sentences = []
    for condition in next(iter(facts.values()), {}):
        seen = {name: _parts(fact[condition]) for name, fact in facts.items()}
        usual = _usual(seen.values())
        for name, parts in seen.items():
            odd = [
                f"{f'{key} ' if key else ''}{_short(value)} instead of {_short(usual[key])}"
                for key, value in parts.items()
                if repr(value) != repr(usual[key])
            ]
            if odd:
                sentences.append(f"{name}: {condition} {', '.join(odd)}")
    return sentences


def _parts(value: Any) -> dict[str, Any]:
    return dict(sorted(value.items())) if isinstance(value, dict) else {"": value}


def _usual(seen: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The commonest value of each part; of equally common ones the first."""
    values: dict[str, list[Any]] = {}
    for parts in seen:
        for key, value in parts.items():
            values.setdefault(key, []).append(value)
    commonest = {key: Counter(map(repr, found)).most_common(1)[0][0] for key, found in values.items()}
    return {key: next(v for v in found if repr(v) == commonest[key]) for key, found in values.items()}


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    if isinstance(value, list | tuple):
        return " / ".join(_short(v) for v in value) or "none"
    return str(value)
