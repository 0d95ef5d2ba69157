"""Live progress of a study on standard error: bars on a terminal, plain lines elsewhere.

Names and messages come from users and from logs: they are printed as text, never as markup or control sequences.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import TaskID


class Progress(Protocol):
    """What follows a study while it runs; a context manager."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None: ...

    def at(
        self,
        experiment: str,
        stage: str = "",
        message: str = "",
        fraction: float | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """``experiment`` entered ``stage``, or got on within its last one; ``fraction`` is of the whole experiment."""

    def line(self, text: str) -> None:
        """Something worth a line of its own."""

    def ended(self, experiment: str, status: str, reason: str = "") -> None:
        """``experiment`` reached its end."""


def printable(text: str) -> str:
    """``text`` on one line, with control characters (ANSI sequences, carriage returns) shown as ``?``."""
    return "".join(c if c.isprintable() else " " if c in "\t\n" else "?" for c in text)


#: Seconds between two lines of one experiment while its stage goes on.
QUIET_S = 10.0


class Plain:
    """One line whenever an experiment's stage changes, every ten seconds while it goes on, and when it ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: dict[str, tuple[str, float]] = {}

    def __enter__(self) -> Plain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def at(
        self,
        experiment: str,
        stage: str = "",
        message: str = "",
        fraction: float | None = None,
        seconds_left: float | None = None,
    ) -> None:
        now = time.monotonic()
        last, told = self._last.get(experiment, ("", -QUIET_S))
        if (stage and stage != last) or now - told >= QUIET_S:
            self._last[experiment] = (stage or last, now)
            percent = f" ({fraction:.0%})" if fraction else ""
            self.line(f"{experiment}: " + ": ".join(filter(None, (stage or last, message))) + percent)

    def line(self, text: str) -> None:
        self._stream.write(printable(text) + "\n")
        self._stream.flush()

    def ended(self, experiment: str, status: str, reason: str = "") -> None:
        self.line(f"{experiment}: {status}" + (f": {reason}" if reason else ""))


class Bars:
    """One bar per experiment, redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        self._bars = RichProgress(
            TextColumn("{task.fields[name]}", markup=False, table_column=Column(max_width=40, no_wrap=True)),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True)),
            console=Console(file=stream, highlight=False),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._stages: dict[str, str] = {}

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def at(
        self,
        experiment: str,
        stage: str = "",
        message: str = "",
        fraction: float | None = None,
        seconds_left: float | None = None,
    ) -> None:
        if stage:
            self._stages[experiment] = stage
        words = [self._stages.get(experiment, ""), message, f"{seconds_left:.0f} s left" if seconds_left else ""]
        self._update(experiment, completed=fraction, state=printable(", ".join(filter(None, words))))

    def line(self, text: str) -> None:
        self._bars.console.print(printable(text), markup=False)

    def ended(self, experiment: str, status: str, reason: str = "") -> None:
        done = 1.0 if status == "succeeded" else None
        self._update(experiment, completed=done, state=status)
        if reason:
            self.line(f"{experiment}: {status}: {reason}")

    def _update(self, experiment: str, completed: float | None, state: str) -> None:
        if experiment not in self._tasks:
            self._tasks[experiment] = self._bars.add_task("", total=1.0, name=printable(experiment), state="")
        task = self._tasks[experiment]
        self._bars.update(task, completed=completed, state=state)


def progress(stream: TextIO | None = None) -> Progress:
    """Bars where ``stream`` (default: standard error) is a terminal, else plain lines."""
    stream = stream or sys.stderr
    return Bars(stream) if stream.isatty() else Plain(stream)
