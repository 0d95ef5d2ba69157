"""Web tests touch no broker, log or cache of a person's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from webapp.runs import queue


@pytest.fixture(autouse=True)
def _own_home(settings: Settings, tmp_path: Path) -> Iterator[None]:
    """State below the test's folder, and a broker that is not there: the database alone must be enough."""
    settings.STEELYARD_HOME = tmp_path / "home"
    settings.LOG_ROOT = tmp_path / "home" / "logs"
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {**settings.STORAGES["default"], "OPTIONS": {"location": str(tmp_path / "home" / "artifacts")}},
    }
    settings.STEELYARD_CACHE = tmp_path / "cache"
    settings.BROKER_URL = f"redis+socket://{tmp_path}/nothing.sock"
    queue.producer.cache_clear()
    yield
    queue.producer.cache_clear()
