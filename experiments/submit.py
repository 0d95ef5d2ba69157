"""``steelyard submit``: queue a study on a server and, if asked, follow it to its end."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.client import Client, ServerRefused
from experiments.console import Progress

#: One long poll; shorter than the idle limits of usual proxies.
POLL_S = 20.0
#: At most one round of questions in this time.
PACE_S = 0.5
_ENDED = frozenset({"succeeded", "failed", "cancelled"})


class WaitedTooLong(Exception):
    """The study did not end within ``--timeout``."""


@dataclass(frozen=True)
class Submitted:
    """A study on the server, as its answer to the submission describes it."""

    id: int
    page: str
    refused: tuple[str, ...]
    lines: tuple[str, ...]


def send(client: Client, spec: Path, body: bytes) -> Submitted:
    """Queue the study of ``body``; the file's ending says whether it is JSON or YAML.

    Raises:
        ServerRefused, ServerUnreachable: see :mod:`experiments.client`.
    """
    media = "application/json" if spec.suffix.lower() == ".json" else "application/yaml"
    answer = client.submit(body, media=media, idempotency_key=str(uuid.uuid4()))
    lines = []
    for experiment in answer["experiments"]:
        failure = experiment.get("failure")
        notes = [failure["message"]] if failure else experiment["preflight"].get("notes", [])
        lines.append(f"{experiment['name']}: {experiment['status']}" + "".join(f"; {note}" for note in notes))
    refused = tuple(e["name"] for e in answer["experiments"] if e["status"] == "failed")
    return Submitted(int(answer["id"]), str(answer["links"]["page"]), refused, tuple(lines))


def follow(client: Client, study: int, progress: Progress, *, timeout_s: float | None) -> None:
    """Return once every experiment of ``study`` has ended; show what happens meanwhile.

    One experiment at a time is long-polled (a running one if there is one), so that the server is asked only when
    something happens; the others are seen whenever that answers.

    Raises:
        WaitedTooLong: after ``timeout_s`` seconds.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    after: dict[int, int] = {}
    ended: set[int] = set()
    while True:
        experiments = client.study(study)["experiments"]
        for experiment in experiments:
            if experiment["status"] in _ENDED and experiment["id"] not in ended:
                ended.add(experiment["id"])
                progress.ended(
                    experiment["name"], experiment["status"], (experiment["failure"] or {}).get("message", "")
                )
            elif experiment["status"] == "running":
                progress.at(
                    experiment["name"],
                    experiment["stage"] or "running",
                    fraction=experiment["fraction"],
                    seconds_left=experiment["seconds_left"],
                )
        alive = [e for e in experiments if e["status"] not in _ENDED]
        if not alive:
            return
        left = POLL_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise WaitedTooLong(f"study {study} has not ended after {timeout_s:.0f} s; it goes on on the server")
        watched = next((e for e in alive if e["status"] == "running"), alive[0])
        seen = after.setdefault(watched["id"], watched["last_seq"])
        asked = time.monotonic()
        wait_s = min(POLL_S, max(left, 0.1))
        answer = client.events(watched["id"], after=seen, wait_s=wait_s)
        for event in answer["events"]:
            after[watched["id"]] = event["seq"]
            _show(watched["name"], event, progress)
        # Answers of a busy stream come at once, and so do those of a server with no room for another long poll.
        time.sleep(max(0.0, min(PACE_S, wait_s) - (time.monotonic() - asked)))


def _show(name: str, event: dict[str, Any], progress: Progress) -> None:
    data = event["data"]
    if event["kind"] in {"stage", "progress"}:
        progress.at(
            name,
            data.get("stage") or "",
            data.get("message") or "",
            data.get("fraction"),
            data.get("seconds_left"),
        )


def gate_exit(client: Client, study: int, progress: Progress) -> int:
    """The gate's verdict as an exit code: 0 passed, 3 failed, 5 undecided."""
    while True:
        answer = client.gate(study, wait_s=POLL_S)
        verdict = answer.get("verdict")
        if verdict != "pending":
            break
    for rule in answer.get("rules", ()):
        progress.line(
            f"gate: {rule.get('experiment')} {rule.get('metric')}: {rule.get('verdict')}: {rule.get('reason')}"
        )
    progress.line(f"gate: {verdict}")
    codes = {"passed": 0, "failed": 3, "undecided": 5}
    if verdict not in codes:
        raise ServerRefused(200, f"the server's gate says {verdict!r}, which this version does not know")
    return codes[str(verdict)]
