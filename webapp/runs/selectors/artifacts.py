"""Reads of artifacts: the one of an experiment, and what the storage holds for whom."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Min

from webapp.core.errors import NoArtifact
from webapp.runs import artifact_files
from webapp.runs.models import TERMINAL, Artifact, Experiment, Status


@dataclass(frozen=True)
class StoredFiles:
    """One set of files in the storage.

    ``experiments``: how many have it as the result of their accepted attempt; 0: only earlier attempts had.
    """

    sha256: str
    bytes: int
    experiments: int
    last_stored_at: datetime


def artifact_of(experiment: Experiment) -> Artifact | None:
    """The artifact of the experiment's accepted attempt, stored or not."""
    if experiment.accepted_id is None:
        return None
    return Artifact.objects.filter(attempt=experiment.accepted_id).first()


def downloadable(experiment: Experiment) -> Artifact:
    """The artifact whose files are all there.

    Raises:
        NoArtifact: why there is none.
    """
    if experiment.status not in TERMINAL:
        raise NoArtifact(f"there is no artifact yet: the experiment is {experiment.status}")
    if experiment.status != Status.SUCCEEDED:
        raise NoArtifact(f"there is no artifact: the experiment {_ended(experiment.status)}")
    artifact = artifact_of(experiment)
    if artifact is None:
        raise NoArtifact("there is no artifact: the experiment was run before artifacts were kept; run it again")
    if artifact.removed_at is not None:
        raise NoArtifact(
            f"the artifact was removed on {artifact.removed_at:%Y-%m-%d}; run the experiment again to make it again"
        )
    if artifact.stored_at is None:
        why = f"it could not be stored ({artifact.problem})" if artifact.problem else "it is being stored; try again"
        raise NoArtifact(f"there is no artifact to download: {why}")
    if not artifact_files.present(artifact.sha256, artifact.files):
        raise NoArtifact("the artifact's files are no longer in the storage; run the experiment again to make it again")
    return artifact


def stored_files() -> list[StoredFiles]:
    """All that lies in the storage, what was stored longest ago first: for whoever decides what may go."""
    rows = (
        Artifact.objects.filter(stored_at__isnull=False, removed_at=None)
        .values("sha256")
        .annotate(one=Min("pk"), experiments=Count("attempt__accepted_for"), last_stored_at=Max("stored_at"))
        .order_by("last_stored_at", "sha256")
    )
    found = list(rows)
    files = dict(Artifact.objects.filter(pk__in=[row["one"] for row in found]).values_list("sha256", "files"))
    return [
        StoredFiles(row["sha256"], sum(files[row["sha256"]].values()), row["experiments"], row["last_stored_at"])
        for row in found
    ]


def _ended(status: str) -> str:
    return "was cancelled" if status == Status.CANCELLED else status
