"""Puts what an attempt saved into the storage, from where people download it."""

from __future__ import annotations

from pathlib import Path

import structlog

from experiments.records import Report
from webapp.core.clock import database_now
from webapp.runs import artifact_files
from webapp.runs.models import Artifact, AttemptReport

log = structlog.get_logger(__name__)


def artifact_store(*, attempt_id: int) -> None:
    """Store the files of an accepted attempt's artifact; called on the host that made them.

    An attempt without an artifact is left alone. A storage that can't take the files costs the download, not the
    result: why stands in the row.
    """
    artifact = Artifact.objects.filter(attempt=attempt_id, stored_at=None, removed_at=None).first()
    stored = AttemptReport.objects.filter(attempt=attempt_id).first()
    if artifact is None or stored is None:
        return
    record = Report.model_validate(stored.data).artifact
    if record is None or record.path is None:
        return
    try:
        artifact_files.put(artifact.sha256, artifact.files, Path(record.path))
    except (OSError, artifact_files.UnsafeName) as error:
        log.warning("artifact_not_stored", attempt=attempt_id, error=str(error))
        Artifact.objects.filter(pk=artifact.pk).update(problem=_words(error)[:400])
        return
    Artifact.objects.filter(pk=artifact.pk, removed_at=None).update(stored_at=database_now(), problem="")


def _words(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "its files were no longer in the worker's cache"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
