"""A dashboard of one's own for a benchmark: own state, own port, all of it gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from experiments.client import Client

ROOT = Path(__file__).resolve().parent.parent
_ENDED = {"succeeded", "failed", "cancelled"}

MAKE_KEY = """
from webapp.accounts.services import bootstrap
print("KEY " + bootstrap(team_name="Benchmarks").api_key)
"""


@dataclass(frozen=True)
class Dashboard:
    """A running ``manage.py up``: its address, a key, and the process that owns all others."""

    url: str
    key: str
    pid: int

    @property
    def client(self) -> Client:
        """A client with the key."""
        return Client(self.url, self.key)

    def run_study(self, spec: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Submit a study, wait for its end, and return its state.

        Raises:
            TimeoutError: it did not end in time.
        """
        client = self.client
        body = json.dumps(spec).encode()
        study = client.submit(body, media="application/json", idempotency_key=str(time.time_ns()))["id"]
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            state = client.study(study)
            alive = [e for e in state["experiments"] if e["status"] not in _ENDED]
            if not alive:
                return state
            watched = next((e for e in alive if e["status"] == "running"), alive[0])
            client.events(watched["id"], after=watched["last_seq"], wait_s=10)
        raise TimeoutError(f"study {study} did not end within {timeout_s:.0f} s")

    def web_rss_bytes(self) -> dict[str, int]:
        """Resident bytes of each web process."""
        found = {}
        for process in psutil.Process(self.pid).children(recursive=True):
            try:
                words = process.cmdline()
                if any("gunicorn" in word for word in words[:3]):
                    found[f"{process.pid} {'master' if process.children() else 'worker'}"] = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return found

    def web_maps(self) -> str:
        """Names of the libraries that web processes have mapped, to see that torch isn't among them."""
        pids = [int(name.split()[0]) for name in self.web_rss_bytes()]
        return "\n".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)


@contextmanager
def dashboard(home: Path, cache: Path) -> Iterator[Dashboard]:
    """Start the dashboard with a worker on a free port, state in ``home``; stop it as Ctrl-C would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "STEELYARD_HOME": str(home), "STEELYARD_CACHE": str(cache), "PORT": str(port)}
    for name in ("DATABASE_URL", "REDIS_URL", "STEELYARD_ENV"):
        environment.pop(name, None)

    def manage(*arguments: str) -> str:
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"manage.py {arguments[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    manage("migrate", "--verbosity", "0")
    key = manage("shell", "-c", MAKE_KEY).rsplit("KEY ", 1)[-1].strip()
    log = home / "up.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", str(port), "--no-demo"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _await(url, process, log)
        yield Dashboard(url=url, key=key, pid=process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"manage.py up ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{url} did not answer within 120 s:\n{log.read_text()[-3000:]}")
