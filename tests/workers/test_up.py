"""`manage.py up`: one parent for everything, and nothing left when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_for
from webapp.core import process_tree

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Up:
    """The command as a person types it, in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **{k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL", "STEELYARD_ENV")},
            "STEELYARD_HOME": str(home),
            "PORT": str(self.port),
        }
        self.output = home.parent / "up.log"
        self._known: set[psutil.Process] = set()
        self.process = self.start("--no-demo")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "manage.py", "up", *arguments],
                cwd=ROOT,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def answers(self, page: str = "/healthz") -> bool:
        assert self.process.poll() is None, self.output.read_text()
        try:
            with urllib.request.urlopen(self.url + page, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def family(self) -> list[psutil.Process]:
        """All that it started and that still runs; Redis overwrites its environment, so its kinship counts."""
        marked = process_tree.marked({"STEELYARD_HOME": str(self.home), "PORT": str(self.port)})
        self._known = {p for p in {*self._known, *marked, *process_tree.descendants(self.process.pid)} if is_there(p)}
        return list(self._known)

    def member(self, word: str) -> psutil.Process:
        """The eldest process whose command line holds ``word``."""
        found = [p for p in self.family() if word in " ".join(p.cmdline())]
        return min(found, key=lambda p: p.create_time())


def is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "home")
    wait_for(made.answers, 60)
    yield made
    made.process.kill()
    made.process.wait()
    process_tree.kill(made.family())


def test_it_serves_and_a_second_one_is_refused_and_ctrl_c_leaves_no_process(up: Up) -> None:
    wait_for(lambda: "Stop: Ctrl-C" in up.output.read_text(), 30)
    said = up.output.read_text()
    assert f"Steelyard serves {up.url}" in said
    assert "Sign in as admin with the password " in said
    assert "API key (shown once): sy_" in said
    wait_for(lambda: up.answers("/readyz"), 20)
    with urllib.request.urlopen(f"{up.url}/static/plotly/plotly.min.js", timeout=10) as script:
        assert script.status == 200
    web = up.member("gunicorn")
    for process in (web, *web.children()):
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
        assert process.memory_info().rss < 200 << 20

    second = subprocess.run(
        [sys.executable, "manage.py", "up", "--no-demo", "--port", str(free_port())],
        cwd=ROOT,
        env=up.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    assert f"already runs for {up.home} (process {up.process.pid})" in second.stderr

    began = time.monotonic()
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(timeout=15) == 0
    assert time.monotonic() - began < 10
    assert up.family() == []


def test_what_dies_is_started_again_and_what_outlives_a_killed_parent_is_nothing(up: Up) -> None:
    wait_for(lambda: up.answers("/readyz"), 30)
    dead = [up.member("redis-server"), up.member("celery"), up.member("gunicorn")]
    for process in dead:
        process.kill()
    wait_for(lambda: up.answers("/readyz"), 30)
    assert not {p.pid for p in dead} & {up.member(w).pid for w in ("redis-server", "celery", "gunicorn")}

    up.process.kill()
    up.process.wait()
    wait_for(lambda: up.family() == [], 15)


def test_a_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [sys.executable, "manage.py", "up", "--no-demo", "--port", str(taken.getsockname()[1])],
            cwd=ROOT,
            env={**os.environ, "STEELYARD_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "choose another with PORT=8001" in done.stderr
    assert "Traceback" not in done.stderr
