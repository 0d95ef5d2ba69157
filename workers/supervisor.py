"""The process that runs one attempt: ``python -m workers.supervisor ATTEMPT NUMBER``.

It starts the engine, passes what it says to the services, renews the lease, and records how it ended. It is a child
subreaper, so that nothing the engine starts outlives the attempt.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
django.setup()

import structlog  # noqa: E402 - what follows needs Django
from django.conf import settings  # noqa: E402
from django.db import InterfaceError, OperationalError, connection  # noqa: E402
from pydantic import ValidationError  # noqa: E402

from experiments import hardware  # noqa: E402
from experiments.records import Event, Failure, Report  # noqa: E402
from webapp.core import process_tree  # noqa: E402
from webapp.core.errors import StaleWrite  # noqa: E402
from webapp.runs import scheduling, selectors, services  # noqa: E402
from webapp.runs.models import Attempt  # noqa: E402
from webapp.runs.services.attempts import RENEW_EVERY_S, Orders  # noqa: E402
from workers.attempt_log import AttemptLog  # noqa: E402
from workers.endings import failure_of  # noqa: E402
from workers.supervision import TIMEOUT_SLACK_S, Limits, Outcome, Supervision  # noqa: E402

log = structlog.get_logger(__name__)

#: Lines of the engine's own log that are kept as events; the rest is in the log file only.
LOG_EVENTS = 2000

#: Events that are kept while the database is away, and how long its return is waited for at the end.
BACKLOG = 1000
PATIENCE_S = 60.0


class Recorder:
    """Passes events and heartbeats to the services."""

    def __init__(self, attempt_id: int, number: int) -> None:
        self._attempt_id = attempt_id
        self._number = number
        self._renewed = time.monotonic()
        self._log_events = 0
        self._backlog: list[Event] = []
        self.failure: Failure | None = None

    def events(self, events: Sequence[Event]) -> None:
        """Store them; of progress only the newest, of log lines only so many."""
        newest = max((index for index, event in enumerate(events) if event.kind == "progress"), default=-1)
        kept, self._backlog = self._backlog, []
        for index, event in enumerate(events):
            if event.kind == "failure":
                self.failure = event.failure
            if event.kind == "report" or (event.kind == "progress" and index != newest):
                continue
            if event.kind == "log":
                self._log_events += 1
                if self._log_events > LOG_EVENTS:
                    continue
            kept.append(event)
        if not kept:
            return
        try:
            services.events_append(attempt_id=self._attempt_id, number=self._number, events=kept)
        except StaleWrite as refusal:
            log.warning("events_refused", reason=str(refusal))  # the next beat learns it too and stops the engine
        except (OperationalError, InterfaceError) as error:
            log.warning("database_unreachable", error=str(error))
            connection.close()
            self._backlog = kept[-BACKLOG:]

    def beat(self, memory_bytes: int | None) -> Orders:
        """Look once a second whether to go on; renew the lease every five."""
        try:
            if time.monotonic() - self._renewed >= RENEW_EVERY_S:
                self._renewed = time.monotonic()
                return services.attempt_renew(
                    attempt_id=self._attempt_id, number=self._number, memory_bytes=memory_bytes
                )
            return selectors.attempt_orders(self._attempt_id, self._number)
        except (OperationalError, InterfaceError) as error:
            # The lease outlives a short absence of the database; a long one ends in "stale".
            log.warning("database_unreachable", error=str(error))
            connection.close()
            return "go on"


def engine_command(folder: Path, cores: Sequence[int]) -> list[str]:
    """The engine's own entry."""
    return [
        sys.executable,
        "-m",
        "experiments",
        "attempt",
        "--spec",
        str(folder / "spec.json"),
        "--out",
        str(folder / "report.json"),
        "--events-fd",
        "{events_fd}",
        "--cores",
        ",".join(str(core) for core in cores),
    ]


def supervise(attempt_id: int, number: int, engine: Sequence[str] | None = None) -> None:
    """Run a claimed attempt to its end and record it.

    Args:
        attempt_id: of the attempt.
        number: of the attempt; under another one nothing can be written.
        engine: another command that speaks the engine's protocol, for tests; ``{folder}`` becomes the attempt's.
    """
    parent = os.getppid()
    process_tree.adopt_orphans()
    attempt = Attempt.objects.select_related("experiment", "worker").get(pk=attempt_id)
    spec = attempt.experiment.spec
    folder = Path(settings.STEELYARD_HOME) / "attempts" / f"{attempt_id}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec))
    resources = spec["resources"]
    attempt_log = AttemptLog(Path(settings.LOG_ROOT) / attempt.log)
    recorder = Recorder(attempt_id, number)
    cores, environment = _devices(attempt)
    command = [part.replace("{folder}", str(folder)) for part in engine] if engine else engine_command(folder, cores)
    supervision = Supervision(
        command,
        environment={**os.environ, **environment},
        folder=settings.BASE_DIR,
        limits=Limits(
            timeout_s=resources["timeout_s"] + TIMEOUT_SLACK_S,
            memory_bytes=resources["memory_mib"] * 2**20 if resources["memory_mib"] else None,
        ),
        log=attempt_log,
        listener=recorder,
    )
    signal.signal(signal.SIGTERM, lambda *_: supervision.stop())
    try:
        outcome = supervision.run()
    finally:
        tail = attempt_log.last_lines
        attempt_log.close()
    _patiently(
        _record,
        attempt_id,
        number,
        resources,
        outcome,
        _report(folder / "report.json"),
        recorder.failure,
        tail,
        os.getppid() != parent,
    )
    shutil.rmtree(folder, ignore_errors=True)
    if outcome.cause != "stopping":
        scheduling.wake()  # the devices are free now; the next tick would be up to two seconds away
    _patiently(partial(services.artifact_store, attempt_id=attempt_id))


def _patiently(call: Callable[..., None], *arguments: Any) -> None:
    """Call until the database is there, for a minute at most: what took an hour to measure is worth the wait."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call(*arguments)
        except (OperationalError, InterfaceError) as error:
            if time.monotonic() > deadline:
                raise
            log.warning("database_unreachable", error=str(error))
            connection.close()
            time.sleep(1.0)


def _devices(attempt: Attempt) -> tuple[tuple[int, ...], dict[str, str]]:
    """The leased cores, and what shows the engine the leased GPUs alone."""
    facts = {d["name"]: d for d in (attempt.worker.devices if attempt.worker else [])}
    leased = [facts[name] for name in attempt.devices if name in facts]
    cores = tuple(sorted(core for device in leased for core in device["cores"]))
    gpus = [name.split(":")[1] for name in attempt.devices if name.startswith("cuda:")]
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    return cores or hardware.allowed_cores(), environment


def _report(path: Path) -> Report | None:
    try:
        return Report.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        log.error("report_unreadable", error=str(error)[:500])
        return None


def _record(
    attempt_id: int,
    number: int,
    resources: dict[str, Any],
    outcome: Outcome,
    report: Report | None,
    failure: Failure | None,
    tail: tuple[str, ...],
    orphaned: bool,
) -> None:
    """Write the end of the attempt, exactly once; whoever lost the race for it writes nothing.

    ``orphaned``: the worker's process is gone, so a stop was its death and not its wish.
    """
    try:
        if report is not None and outcome.cause in ("exited", "cancel", "stopping") and outcome.returncode in (0, 1):
            services.report_record(attempt_id=attempt_id, number=number, report=report)
        elif outcome.cause == "cancel":
            services.attempt_end(attempt_id=attempt_id, number=number, status="cancelled", reason="cancelled")
        elif outcome.cause == "stopping":
            services.attempt_lost(
                attempt_id=attempt_id,
                number=number,
                actor="supervisor",
                reason="the worker died" if orphaned else "the worker was stopped",
                fault=orphaned,
            )
        elif outcome.cause != "stale":
            ended = failure_of(outcome, resources, failure, tail)
            services.attempt_end(
                attempt_id=attempt_id, number=number, status="failed", failure=ended, reason=ended.message
            )
    except StaleWrite as refusal:
        log.warning("end_refused", attempt=attempt_id, number=number, reason=str(refusal))


def main(arguments: list[str]) -> int:
    """Run the attempt that the arguments name."""
    parent = os.getppid()
    process_tree.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return 1  # the pool's child died before this process asked to be told
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which then sends SIGTERM
    supervise(int(arguments[0]), int(arguments[1]), arguments[2:] or None)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
