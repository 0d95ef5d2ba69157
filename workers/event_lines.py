"""Reads the engine's events from its pipe: JSON lines of at most 64 KiB, anything else is named and left out."""

from __future__ import annotations

from pydantic import ValidationError

from experiments.records import Event

LINE_LIMIT = 64 * 1024


class EventLines:
    """Splits a byte stream into events; ``complaints`` says what could not be read."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipping = 0
        self.complaints: list[str] = []

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now."""
        events = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            event = self._line(line)
            if event is not None:
                events.append(event)
        self._keep(rest)
        return events

    def _line(self, end: bytes) -> Event | None:
        self._keep(end)
        raw, skipped = bytes(self._buffer), self._skipping
        self._buffer.clear()
        self._skipping = 0
        if skipped:
            self.complaints.append(f"an event of {skipped:,} bytes was left out; at most {LINE_LIMIT:,} are allowed")
            return None
        if not raw.strip():
            return None
        try:
            return Event.model_validate_json(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            self.complaints.append(f"not an event ({first['msg']}): {raw[:200].decode(errors='backslashreplace')}")
            return None

    def _keep(self, piece: bytes) -> None:
        if self._skipping or len(self._buffer) + len(piece) > LINE_LIMIT:
            self._skipping += len(piece) + (len(self._buffer) if not self._skipping else 0)
            self._buffer.clear()
        else:
            self._buffer += piece
