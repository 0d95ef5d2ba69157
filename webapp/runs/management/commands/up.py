"""Runs everything on this machine: database, broker, worker, web server, and the demo studies."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections

from experiments.console import progress
from webapp.accounts import services as accounts
from webapp.accounts.models import Team
from webapp.core.household import Household, Service, ServiceFailed, inherited
from webapp.runs import queue
from webapp.runs.demo import demo_queue
from webapp.runs.follow import Follower, all_succeeded, tables
from webapp.runs.management.commands.worker import worker_command
from webapp.runs.models import Study
from webapp.runs.redis_server import redis_command

#: Seconds from SIGTERM to SIGKILL of each; together they stay below ten.
STOP_WITHIN_S = {"web server": 1.5, "worker": 7.0, "broker": 1.0}


class Command(BaseCommand):
    """``manage.py up``: one parent for web, worker and broker; Ctrl-C ends all of them."""

    requires_system_checks = []  # a start should take seconds; `manage.py check` and `doctor` say what is wrong
    help = "Run the whole of Steelyard on this machine; queue the demo studies once; Ctrl-C stops everything."

    def add_arguments(self, parser: CommandParser) -> None:
        """What to do beside serving."""
        parser.add_argument("--port", type=int, default=int(os.environ.get("PORT") or 8000))
        parser.add_argument("--devices", default="", help="of the worker, e.g. cpu:0,cpu:1; default: all")
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--demo", action="store_true", help="end when the demo has; non-zero if it failed")
        which.add_argument("--no-demo", action="store_true", help="queue nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        """Start, serve, stop.

        Raises:
            CommandError: a second parent for the same home, a port in use, or a service that does not start.
        """
        self._stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop.set())
        with only_one(settings.STEELYARD_HOME):
            require_free(options["port"])
            url = settings.STEELYARD_URL or f"http://127.0.0.1:{options['port']}"
            call_command("migrate", verbosity=0, interactive=False)
            sign_in = self._bootstrap()
            household = Household()
            try:
                self._start(household, options["port"], options["devices"])
                self._say(f"Steelyard serves {url}\n{sign_in}\nLogs: {settings.LOG_ROOT}   Stop: Ctrl-C\n")
                code = self._demo(household, url, sign_in, wanted=not options["no_demo"])
                while not self._stop.wait(1.0) and not options["demo"]:
                    household.look_after()
            except ServiceFailed as failure:
                raise CommandError(str(failure)) from None
            finally:
                household.stop()
        if options["demo"] and code:
            sys.exit(code)

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    def _bootstrap(self) -> str:
        first = accounts.bootstrap(password=os.environ.get("STEELYARD_ADMIN_PASSWORD") or None)
        if first is None:
            return "Sign in as before (forgotten? python manage.py changepassword admin)."
        return f"Sign in as {first.username} with the password {first.password}\nAPI key (shown once): {first.api_key}"

    def _start(self, household: Household, port: int, devices: str) -> None:
        """Broker, then worker and web server together; returns when the first page can be served."""
        broker = self._broker(household)
        worker = Service(
            name="worker",
            command=worker_command(),
            environment=inherited(STEELYARD_DEVICES=devices),
            folder=settings.BASE_DIR,
            log=settings.LOG_ROOT / "worker.log",
            answers=lambda: True,
            stop_within_s=STOP_WITHIN_S["worker"],
        )
        web = Service(
            name="web server",
            command=web_command(port),
            environment=inherited(),
            folder=settings.BASE_DIR,
            log=settings.LOG_ROOT / "web.log",
            answers=lambda: web_answers(port),
            stop_within_s=STOP_WITHIN_S["web server"],
        )
        if broker is not None:
            household.wait_for(broker, timeout_s=10, stop_requested=self._stop.is_set)
        household.start(worker)
        household.start(web)
        household.wait_for(web, timeout_s=30, stop_requested=self._stop.is_set)

    def _broker(self, household: Household) -> Service | None:
        if not settings.ENVIRONMENT.embedded_broker:
            if not queue.broker_answers():
                raise CommandError(f"no broker answers at {settings.BROKER_URL}; check REDIS_URL")
            return None
        place = settings.ENVIRONMENT.broker_socket
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        broker = Service(
            name="broker",
            command=redis_command(place, place.parent),
            environment=inherited(),
            folder=place.parent,
            log=settings.LOG_ROOT / "redis.log",
            answers=queue.broker_answers,
            stop_within_s=STOP_WITHIN_S["broker"],
        )
        household.start(broker)
        return broker

    def _demo(self, household: Household, url: str, sign_in: str, *, wanted: bool) -> int:
        """Queue the demo studies, follow them to their end, print their tables; 1 if an experiment failed."""
        team = Team.objects.order_by("pk").first()
        if not wanted or team is None or self._stop.is_set():
            return 0
        studies = demo_queue(team=team, again=True)
        with progress() as shown:
            follower = Follower(studies, shown)
            began = time.monotonic()
            while not follower.look():
                household.look_after()
                if self._stop.wait(1.0):
                    return 130
                close_old_connections()
            shown.line(f"the demo studies have ended ({time.monotonic() - began:.0f} s)")
        self._report(studies, url, sign_in)
        return 0 if all_succeeded(studies) else 1

    def _report(self, studies: list[Study], url: str, sign_in: str) -> None:
        pages = "\n".join(f"{study.name}: {url}/studies/{study.pk}" for study in studies)
        self._say(f"\n{tables(studies)}\n\n{pages}\n{sign_in}")


def web_command(port: int) -> list[str]:
    """Gunicorn with one process of many threads: sync views are faster there, and one process keeps memory small."""
    return [
        sys.executable,
        *("-m", "gunicorn", "webapp.wsgi", "--bind", f"127.0.0.1:{port}"),
        *("--workers", "1", "--threads", "16", "--worker-class", "gthread"),
        *("--graceful-timeout", "1", "--timeout", "120", "--log-level", "warning"),
    ]


def web_answers(port: int) -> bool:
    """True if ``/healthz`` answers at all."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True  # it answers, if only to say that this host name is not allowed
    except OSError:
        return False


def require_free(port: int) -> None:
    """Return if the port can be bound.

    Raises:
        CommandError: it is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise CommandError(f"port {port} can't be used ({error}); choose another with PORT=8001") from None


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Hold the lock of ``home``.

    Raises:
        CommandError: another parent holds it.
    """
    folder = home / "run"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CommandError(
                f"Steelyard already runs for {home} (process {lock.read().strip() or 'unknown'}); stop it first"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
