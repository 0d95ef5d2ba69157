"""An experiment's events as lines that a person can read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from webapp.core import formatting
from webapp.core.log_text import clean_line
from webapp.runs.models import Event

#: The engine's stages in order, and what each does in a few words.
STAGES = {
    "load": "load model and data",
    "build": "build the artifact",
    "canary": "check it before timing",
    "measure": "measure, baseline and candidate in turn",
    "quality": "score quality",
    "report": "write the report",
}


@dataclass(frozen=True)
class Line:
    """One event: when, which state it stands for (for its mark), and a sentence."""

    at: datetime
    state: str
    text: str
    actor: str = ""
    attempt: int = 0
    seq: int = 0


def line(event: Event) -> Line | None:
    """The event as a line, or None if it says nothing to a person (bare progress)."""
    text, state = _words(event.kind, event.data)
    if not text:
        return None
    return Line(event.at, state, text, event.actor, event.attempt_number, event.seq)


def _words(kind: str, data: dict[str, Any]) -> tuple[str, str]:
    match kind:
        case "status":
            reason = data.get("reason") or ""
            subject = "Attempt" if data.get("subject") == "attempt" else "Experiment"
            return f"{subject} {data.get('to')}{f': {reason}' if reason else ''}", str(data.get("to") or "")
        case "stage":
            name = str(data.get("stage") or "")
            words = STAGES.get(name, name)
            state = data.get("state")
            return f"{words} {'begins' if state == 'started' else state or ''}".strip(), (
                "running" if state == "started" else "succeeded"
            )
        case "log" | "progress":
            return clean_line(str(data.get("message") or "")), ""
        case "measurement":
            return _number(data.get("measurement") or {}), ""
        case "failure":
            failure = data.get("failure") or {}
            return f"{str(failure.get('kind', 'failure')).replace('_', ' ')}: {failure.get('message', '')}", "failed"
        case "report":
            return "report written", "succeeded"
        case _:
            return str(data.get("reason") or data.get("message") or kind), ""


def _number(measurement: dict[str, Any]) -> str:
    value, unit = measurement.get("value"), measurement.get("unit") or ""
    at = ", ".join(f"{key.replace('_', ' ')} {inner}" for key, inner in (measurement.get("at") or {}).items())
    shown = formatting.scale(unit)
    text = measurement.get("reason") if value is None else f"{formatting.number(value * shown.factor)} {shown.unit}"
    return f"{measurement.get('metric')}{f' ({at})' if at else ''} = {text}".rstrip()
