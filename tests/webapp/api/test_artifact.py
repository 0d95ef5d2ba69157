"""GET experiments/{id}/artifact."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from django.test import Client

from experiments.spec import parse
from tests import factories
from tests.webapp.api.conftest import Account
from tests.webapp.test_artifacts import built, ended
from webapp.accounts.models import AuditEntry
from webapp.runs import selectors
from webapp.runs.models import Experiment


@pytest.fixture
def stored(ours: Account, tmp_path: Path) -> Experiment:
    """An ended experiment of ours with its artifact."""
    factories.worker()
    baseline, int8 = selectors.experiments(factories.study(ours.team))
    ended(baseline, built(tmp_path / "baseline", "other weights"))
    return ended(int8, built(tmp_path / "made"))


def test_the_download_holds_model_card_and_spec(api: Client, stored: Experiment) -> None:
    answer = api.get(f"/api/v1/experiments/{stored.pk}/artifact")
    body = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/zip"
    assert answer["Content-Disposition"] == f'attachment; filename="{stored.pk}-int8.zip"'
    assert int(answer["Content-Length"]) == len(body)
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        assert names == {f"int8/{n}" for n in ("README.md", "spec.yaml", "model.safetensors", "sub/config.json")}
        assert archive.read("int8/model.safetensors") == b"weights"
        assert b"# int8" in archive.read("int8/README.md")
        assert parse(archive.read("int8/spec.yaml")).expand()[1].canonical() == stored.spec


def test_a_download_is_in_the_audit_log(api: Client, ours: Account, stored: Experiment) -> None:
    api.get(f"/api/v1/experiments/{stored.pk}/artifact")
    entry = AuditEntry.objects.get(action="artifact.download")
    assert (entry.team, entry.target) == (ours.team, f"experiment {stored.pk}")


def test_another_teams_artifact_is_not_there(theirs: Account, stored: Experiment) -> None:
    answer = theirs.client().get(f"/api/v1/experiments/{stored.pk}/artifact")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_not_yet_is_said(api: Client, ours: Account) -> None:
    row = selectors.experiments(factories.study(ours.team))[0]
    answer = api.get(f"/api/v1/experiments/{row.pk}/artifact")
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "code": "no_artifact", "message": "there is no artifact yet: the experiment is queued", "fields": []
    }  # fmt: skip


def test_without_a_key_nothing_is_given(stored: Experiment) -> None:
    assert Client().get(f"/api/v1/experiments/{stored.pk}/artifact").status_code == 401
