"""Workers come, live, fall silent and go."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from tests import factories
from webapp.core.clock import database_now
from webapp.core.errors import Conflict, Invalid
from webapp.runs import selectors, services
from webapp.runs.models import Attempt, Worker
from webapp.runs.scheduling import tick

pytestmark = pytest.mark.django_db


def test_a_living_workers_devices_can_be_leased_and_a_silent_ones_can_not() -> None:
    factories.worker("w1", factories.cuda(0))
    assert [device.name for device in selectors.live_devices()] == ["cuda:0"]
    Worker.objects.update(heartbeat_at=database_now() - timedelta(minutes=1))
    assert selectors.live_devices() == []
    factories.study(resources={"device": "cuda"})
    tick(actor="test")
    assert not Attempt.objects.exists()
    services.worker_heartbeat(name="w1")
    tick(actor="test")
    assert Attempt.objects.count() == 1


def test_a_draining_worker_is_leased_nothing_new() -> None:
    factories.worker("w1")
    services.worker_drain(name="w1")
    factories.study()
    tick(actor="test")
    assert not Attempt.objects.exists()
    services.worker_drain(name="w1", draining=False)
    tick(actor="test")
    assert Attempt.objects.count() == 1


def test_a_worker_that_said_goodbye_is_gone_until_it_comes_again() -> None:
    factories.worker("w1")
    services.worker_stop(name="w1")
    services.worker_heartbeat(name="w1")
    assert selectors.live_devices() == []
    factories.worker("w1")
    assert len(selectors.live_devices()) == 1


def test_a_name_belongs_to_one_living_worker() -> None:
    factories.worker("w1", host="here")
    with pytest.raises(Conflict, match="choose another --name"):
        factories.worker("w1", host="there")


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite only")
def test_sqlite_serves_one_host() -> None:
    factories.worker("w1", host="here")
    with pytest.raises(Conflict, match="PostgreSQL"):
        factories.worker("w2", host="there")
    services.worker_stop(name="w1")
    factories.worker("w2", host="there")


@pytest.mark.parametrize("name", ["", "a b", "x" * 101, "../x", "é"])
def test_a_worker_needs_a_name_that_can_be_a_queues(name: str) -> None:
    with pytest.raises(Invalid):
        factories.worker(name)
