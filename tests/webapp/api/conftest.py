"""Two teams with keys, and a worker's side of the story told through the real services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from experiments.records import DeviceFacts, Measurement, Report
from webapp.accounts.models import ApiKey, Membership, Role, Team, User
from webapp.accounts.services import api_key_create
from webapp.runs import queue, scheduling, services
from webapp.runs.models import Attempt, Experiment

SPEC: dict[str, Any] = {
    "schema_version": 1,
    "name": "reviews, smaller",
    "model": {"source": "demo", "name": "minilm-reviews"},
    "dataset": {"source": "demo", "name": "reviews", "split": "test", "limit": 50},
    "baseline": "fp32",
    "experiments": [
        {"name": "fp32"},
        {"name": "int8-ort", "recipe": [{"technique": "int8-dynamic"}], "runtime": "onnxruntime"},
    ],
}


@pytest.fixture(autouse=True)
def _broker_in_memory(settings: Settings, _own_home: None) -> None:
    """Messages to workers stay in this process: the API's promises are about the database."""
    settings.BROKER_URL = "memory://"
    queue.producer.cache_clear()


@dataclass(frozen=True)
class Account:
    """A team, its person, and a key that may submit."""

    team: Team
    user: User
    key: ApiKey
    raw: str

    def client(self, raw: str | None = None) -> Client:
        """A client that sends the key (or another one) and would show any exception as the answer it becomes."""
        return Client(raise_request_exception=False, headers={"Authorization": f"Bearer {raw or self.raw}"})


def account(slug: str, role: Role = Role.SUBMITTER) -> Account:
    """A new team of one person with a key."""
    team = Team.objects.create(name=slug, slug=slug)
    user = User.objects.create_user(username=f"{slug}-person")
    Membership.objects.create(team=team, user=user, role=role)
    key, raw = api_key_create(team=team, user=user, name="ci", role=role)
    return Account(team, user, key, raw)


@pytest.fixture
def ours(db: None) -> Account:
    return account("ours")


@pytest.fixture
def theirs(db: None) -> Account:
    return account("theirs")


@pytest.fixture
def api(ours: Account) -> Client:
    """Calls with our team's key."""
    return ours.client()


def submit(client: Client, spec: dict[str, Any], **headers: str) -> dict[str, Any]:
    """Queue a study; its answer."""
    response = client.post("/api/v1/studies", spec, content_type="application/json", headers=headers)
    assert response.status_code == 202, response.content
    body: dict[str, Any] = response.json()
    return body


def problem(response: Any, status: int) -> dict[str, Any]:
    """The error of an answer, held to the one shape."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/json"
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"code", "message", "fields"}
    assert all(set(field) == {"path", "message"} for field in error["fields"])
    assert "Traceback" not in response.content.decode()
    return error


@pytest.fixture
def begin() -> Callable[[int], Attempt]:
    """Lease an experiment to a worker and begin it."""

    def run(experiment_id: int) -> Attempt:
        name = f"worker-{experiment_id}"
        facts = DeviceFacts(name=f"cpu:{experiment_id}", kind="cpu", model="test", cores=(experiment_id,))
        services.worker_register(name=name, host="one-host", pid=1, devices=[facts])
        Experiment.objects.filter(pk=experiment_id).update(priority=100)
        while not Attempt.objects.filter(experiment_id=experiment_id, status="leased").exists():
            assert scheduling.tick(actor="test")
        leased = Attempt.objects.get(experiment_id=experiment_id, status="leased")
        attempt = services.attempt_claim(attempt_id=leased.pk, number=leased.number, worker_name=leased.worker_name)
        assert attempt is not None
        return attempt

    return run


@pytest.fixture
def finish(begin: Callable[[int], Attempt]) -> Callable[..., None]:
    """Run an experiment to a report with these measurements."""

    def run(experiment_id: int, *measurements: Measurement) -> None:
        attempt = begin(experiment_id)
        row = Experiment.objects.get(pk=experiment_id)
        report = Report(
            experiment=row.name,
            baseline=row.spec["baseline"]["name"],
            task="text-classification",
            spec=row.spec,
            status="succeeded",
            measurements=measurements,
        )
        services.report_record(attempt_id=attempt.pk, number=attempt.number, report=report)

    return run
