"""Starts a Celery worker that registers its devices."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.runs import queue


class Command(BaseCommand):
    """``manage.py worker``: this process becomes ``celery -A workers worker``."""

    help = "Run a worker on this machine, with one attempt at a time on each of its devices."

    def add_arguments(self, parser: CommandParser) -> None:
        """What the worker offers and how it is called."""
        parser.add_argument("--devices", help="e.g. cpu:0,cpu:1 (cores split in two) or cuda:0,cuda:1; default: all")
        parser.add_argument("--name", help="default: the host's name")
        parser.add_argument("--labels", help="e.g. gpu=A100,site=lab; studies can ask for them")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check that the broker answers, then become Celery.

        Raises:
            CommandError: no broker.
        """
        if not queue.broker_answers():
            hint = (
                "Start everything with `python manage.py up`, or set REDIS_URL."
                if settings.ENVIRONMENT.embedded_broker
                else "Check REDIS_URL."
            )
            raise CommandError(f"no broker answers at {settings.BROKER_URL}. {hint}")
        for variable, option in (
            ("STEELYARD_DEVICES", "devices"),
            ("STEELYARD_WORKER", "name"),
            ("STEELYARD_LABELS", "labels"),
        ):
            if options[option]:
                os.environ[variable] = options[option]
        os.chdir(settings.BASE_DIR)
        os.execv(sys.executable, worker_command())  # noqa: S606 - this process becomes Celery


def worker_command() -> list[str]:
    """Celery's command line; name, devices and labels are in the environment."""
    return [
        sys.executable,
        *("-m", "celery", "-A", "workers", "worker", "--loglevel", "INFO"),
        *("--pool", "prefork", "--without-gossip", "--without-mingle", "--without-heartbeat"),
    ]
