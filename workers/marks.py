"""Marks in the environment of all that an attempt starts, so that what it leaves can be told from anything else."""

from __future__ import annotations

import os

from django.conf import settings

ATTEMPT = "STEELYARD_ATTEMPT"
WORKER = "STEELYARD_WORKER"
HOME = "STEELYARD_HOME"


def attempt_mark(attempt_id: int, number: int) -> dict[str, str]:
    """What the processes of one attempt of this installation have in their environment."""
    return {ATTEMPT: f"{attempt_id}.{number}", HOME: str(settings.STEELYARD_HOME)}


def worker_mark(name: str) -> dict[str, str]:
    """What all processes of all attempts of one worker of this installation have in their environment."""
    return {WORKER: name, HOME: str(settings.STEELYARD_HOME)}


def environment_of(attempt_id: int, number: int, worker: str) -> dict[str, str]:
    """The environment of an attempt's supervisor and engine."""
    return {
        **os.environ,
        **attempt_mark(attempt_id, number),
        WORKER: worker,
        "STEELYARD_CACHE": str(settings.STEELYARD_CACHE),
        "STEELYARD_PATH_ROOTS": ":".join(str(root) for root in settings.STEELYARD_PATH_ROOTS),
        "PYTHONUNBUFFERED": "1",
    }
