"""Artifacts: stored once by their hash, told apart by experiment, never outside their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.core.files.storage import default_storage

from experiments.parts.cache import sha256_folder
from experiments.records import ArtifactRecord, Label
from tests import factories
from webapp.core.clock import database_now
from webapp.core.errors import NoArtifact
from webapp.runs import artifact_files, selectors, services
from webapp.runs.models import Artifact, Experiment, Study

pytestmark = pytest.mark.django_db


def built(folder: Path, text: str = "weights") -> ArtifactRecord:
    """Files as a build leaves them, and their record."""
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(text)
    (folder / "sub" / "config.json").write_text("{}")
    files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    return ArtifactRecord(
        sha256=sha256_folder(folder), form="torch", label=Label.PACKED, bytes=len(text), files=files,
        parameters=1, dtype="int8", path=str(folder),
    )  # fmt: skip


def ended(experiment: Experiment, record: ArtifactRecord) -> Experiment:
    """The experiment after its attempt succeeded and its artifact was stored."""
    attempt = factories.running(experiment)
    services.report_record(
        attempt_id=attempt.pk, number=attempt.number, report=factories.report(experiment, artifact=record)
    )
    services.artifact_store(attempt_id=attempt.pk)
    return selectors.experiment(experiment.team, experiment.pk)


@pytest.fixture
def study() -> Study:
    factories.worker()
    return factories.study(names=("fp32", "int8", "again"))


def test_a_stored_artifact_is_linked_not_copied(study: Study, tmp_path: Path) -> None:
    record = built(tmp_path / "made")
    artifact = selectors.downloadable(ended(selectors.experiments(study)[0], record))
    stored = Path(default_storage.path(artifact_files.address(artifact.sha256, "sub/config.json")))
    assert stored.is_relative_to(Path(django_settings.STEELYARD_HOME) / "artifacts")
    assert stored.read_text() == "{}"
    assert os.path.samefile(stored, tmp_path / "made" / "sub" / "config.json")


def test_where_links_are_impossible_the_files_are_copied(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    artifact = selectors.downloadable(ended(selectors.experiments(study)[0], built(tmp_path / "made")))
    with artifact_files.read(artifact.sha256, "model.safetensors") as file:
        assert file.read() == b"weights"
    assert not list(Path(default_storage.location).rglob(".*"))  # type: ignore[attr-defined]


def test_experiments_share_one_artifact(study: Study, tmp_path: Path) -> None:
    rows = selectors.experiments(study)
    for row in rows[:2]:
        ended(row, built(tmp_path / "made"))
    ended(rows[2], built(tmp_path / "other", "other weights"))
    found = selectors.stored_files()
    assert [(f.bytes, f.experiments) for f in found] == [(9, 2), (15, 1)]
    assert len({f.sha256 for f in found}) == 2


def test_run_again_leaves_the_earlier_artifact_to_retention(study: Study, tmp_path: Path) -> None:
    row = ended(selectors.experiments(study)[0], built(tmp_path / "made"))
    services.experiment_retry(team=row.team, experiment_id=row.pk, actor="a")
    again = selectors.experiment(row.team, row.pk)
    with pytest.raises(NoArtifact, match="no artifact yet"):
        selectors.downloadable(again)
    assert [f.experiments for f in selectors.stored_files()] == [0]


def test_an_experiment_without_one_says_why(study: Study, tmp_path: Path) -> None:
    rows = selectors.experiments(study)
    with pytest.raises(NoArtifact, match="yet: the experiment is queued"):
        selectors.downloadable(rows[0])
    attempt = factories.running(rows[0])
    failed = factories.report(rows[0], status="failed", failure={"kind": "canary", "message": "NaN"})
    services.report_record(attempt_id=attempt.pk, number=attempt.number, report=failed)
    services.artifact_store(attempt_id=attempt.pk)
    with pytest.raises(NoArtifact, match="the experiment failed"):
        selectors.downloadable(selectors.experiment(study.team, rows[0].pk))
    services.experiment_cancel(team=study.team, experiment_id=rows[1].pk, actor="a")
    with pytest.raises(NoArtifact, match="was cancelled"):
        selectors.downloadable(selectors.experiment(study.team, rows[1].pk))


def test_removed_or_vanished_files_are_told(study: Study, tmp_path: Path) -> None:
    row = ended(selectors.experiments(study)[0], built(tmp_path / "made"))
    artifact = selectors.downloadable(row)
    Path(default_storage.path(artifact_files.address(artifact.sha256, "model.safetensors"))).unlink()
    with pytest.raises(NoArtifact, match="no longer in the storage"):
        selectors.downloadable(row)
    Artifact.objects.filter(pk=artifact.pk).update(removed_at=database_now())
    with pytest.raises(NoArtifact, match="was removed on"):
        selectors.downloadable(row)


def test_files_that_are_gone_cost_the_download_not_the_result(study: Study, tmp_path: Path) -> None:
    record = built(tmp_path / "made")
    (tmp_path / "made" / "model.safetensors").unlink()
    row = ended(selectors.experiments(study)[0], record)
    assert row.status == "succeeded"
    with pytest.raises(NoArtifact, match="no longer in the worker's cache"):
        selectors.downloadable(row)


def test_a_file_that_changed_since_is_not_stored(study: Study, tmp_path: Path) -> None:
    record = built(tmp_path / "made")
    (tmp_path / "made" / "model.safetensors").write_text("longer than it was")
    with pytest.raises(NoArtifact, match="the report says 7"):
        selectors.downloadable(ended(selectors.experiments(study)[0], record))


@pytest.mark.parametrize("name", ["../secret_key", "/etc/passwd", "a/../../b", "a\\..\\b", "", ".", "a//b", "a\0b"])
def test_a_name_never_leaves_the_artifacts_folder(name: str) -> None:
    with pytest.raises(artifact_files.UnsafeName):
        artifact_files.address("ab" * 32, name)


@pytest.mark.parametrize("sha256", ["../..", "", "AB" * 32, "ab" * 31, "zz" * 32])
def test_a_hash_is_a_hash(sha256: str) -> None:
    with pytest.raises(artifact_files.UnsafeName):
        artifact_files.address(sha256, "model.onnx")


def test_a_link_to_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret!")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "model.onnx").symlink_to(tmp_path / "secret")
    with pytest.raises(artifact_files.UnsafeName):
        artifact_files.put("ab" * 32, {"model.onnx": 7}, tmp_path / "made")
