"""Real processes that share the test's database and home."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from webapp.runs import queue
from workers.identity import this_worker


def database_url() -> str:
    """The address of the test's database, for another process."""
    known = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{known['NAME']}"
    host = known["HOST"] or known["OPTIONS"].get("host", "")
    password = f":{quote(known['PASSWORD'], safe='')}" if known["PASSWORD"] else ""
    port = f"&port={known['PORT']}" if known["PORT"] else ""
    return f"postgresql://{known['USER']}{password}@/{known['NAME']}?host={quote(str(host), safe='')}{port}"


@pytest.fixture
def home(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home, database address, broker address and worker's name in the environment and in the settings."""
    folder = tmp_path / "home"
    folder.mkdir()
    socket = Path(os.environ.get("TMPDIR", "/tmp")) / f"steelyard-test-{os.getpid()}.sock"  # short enough for a socket
    monkeypatch.setenv("STEELYARD_HOME", str(folder))
    monkeypatch.setenv("DATABASE_URL", database_url())
    monkeypatch.setenv("REDIS_URL", f"redis+socket://{socket}")
    monkeypatch.setenv("STEELYARD_PATH_ROOTS", str(tmp_path))
    monkeypatch.setenv("STEELYARD_WORKER", "w1")
    settings.STEELYARD_HOME = folder
    settings.LOG_ROOT = folder / "logs"
    settings.STEELYARD_PATH_ROOTS = (tmp_path,)
    settings.STEELYARD_CACHE = Path(os.environ["STEELYARD_CACHE"])
    settings.BROKER_URL = os.environ["REDIS_URL"]
    queue.producer.cache_clear()
    this_worker.cache_clear()
    yield folder
    queue.producer.cache_clear()
    this_worker.cache_clear()
    socket.unlink(missing_ok=True)
