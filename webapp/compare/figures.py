"""What all charts share: plain dictionaries for Plotly, colours by name, names that are never markup."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Figure = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A figure, one sentence on what it shows, and its data as a table."""

    key: str
    title: str
    summary: str
    figure: Figure
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]


def plain(text: str) -> str:
    """A name as Plotly shows it literally."""
    return html.escape(text, quote=False)


def layout(**extra: Any) -> dict[str, Any]:
    """A layout without a background of its own; ``extra`` are Plotly's own keys."""
    font = {"color": "var(--soft)", "size": 12, "family": "var(--font)"}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": font,
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "showlegend": False,
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--edge)", "font": {"color": "var(--ink)"}},
        **extra,
    }


def axis(title: str = "", *, log: bool = False, decades: float = 0.0, **extra: Any) -> dict[str, Any]:
    """An axis; one with a logarithmic scale over ``decades`` powers of ten has ticks that do not touch."""
    made = {
        "title": {"text": plain(title), "font": {"size": 12}},
        "gridcolor": "var(--line)",
        "linecolor": "var(--line)",
        "zerolinecolor": "var(--line)",
        "automargin": True,
        **extra,
    }
    if log:
        made |= {"type": "log", "dtick": "D2" if decades < 2.2 else 1, "tickformat": "~r", "minor": {"showgrid": False}}
    return made


def wants_log(values: Sequence[float]) -> bool:
    """True if all values are positive and spread over a factor of 8 or more."""
    positive = [v for v in values if v > 0]
    return len(positive) == len(values) > 1 and max(positive) / min(positive) >= 8
