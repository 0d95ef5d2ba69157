"""Turns a study's spec into rows and wakes the scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from experiments.preflight import Preflight, preflight, senseless_problems
from experiments.protocols import Host
from experiments.records import Failure
from experiments.spec import ExperimentSpec, Problem, StudySpec
from webapp.accounts.models import Role, Team, User
from webapp.accounts.services import require
from webapp.core.clock import database_now
from webapp.core.errors import Conflict, Invalid
from webapp.runs import scheduling, selectors
from webapp.runs.models import Event, Experiment, IdempotencyKey, Status, Study
from webapp.runs.services.transitions import transition


def study_submit(
    *,
    team: Team,
    spec: StudySpec,
    user: User | None = None,
    via: str = "web",
    trigger: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
    body_sha256: str | None = None,
) -> Study:
    """Create a study and its experiments in one transaction; those that can't run anywhere end at once, with why.

    Args:
        team: who owns it.
        spec: what to run.
        user: who asked; None for the installation itself (the demo).
        via: ``web``, ``api`` or ``demo``.
        trigger: repository, commit, branch, pull_request, url of a CI run.
        idempotency_key: the same key of the same team gives the first study again.
        body_sha256: hash of the request's body, to tell a repeat from another request under the same key.

    Raises:
        Forbidden: the person may not submit.
        Invalid: a recipe that makes no sense for any model, or a local path outside the folders that this server
            offers; nothing is created.
        Conflict: the key was used for another body.
    """
    if user is not None:
        require(team, user, Role.SUBMITTER)
    body = body_sha256 or ""
    if idempotency_key is not None:
        if not 1 <= len(idempotency_key) <= 200:
            raise Invalid("an Idempotency-Key has 1 to 200 characters")
        if (first := _replay(team, idempotency_key, body)) is not None:
            return first
    _refuse_senseless(spec)
    _refuse_paths(spec)
    points = [(point, preflight_of(point)) for point in spec.expand()]
    try:
        with transaction.atomic():
            study = _create(team, spec, points, user, via, trigger)
            if idempotency_key is not None:
                # In the same transaction: there never is a key without its study.
                IdempotencyKey.objects.create(team=team, key=idempotency_key, body_sha256=body, study=study)
            transaction.on_commit(scheduling.wake)
    except IntegrityError:
        # Two requests with one key came together, and the other one won.
        if idempotency_key is not None and (first := _replay(team, idempotency_key, body)) is not None:
            return first
        raise
    return study


def preflight_of(spec: ExperimentSpec) -> Preflight:
    """What is known of an experiment before it is queued, with this server's folders and the live workers' devices."""
    return preflight(spec, host(), tuple(selectors.live_devices()))


def host() -> Host:
    """Where the web process may look: the shared cache and the offered folders."""
    return Host(
        cache=settings.STEELYARD_CACHE, path_roots=settings.STEELYARD_PATH_ROOTS, offline=settings.STEELYARD_OFFLINE
    )


def _create(
    team: Team,
    spec: StudySpec,
    points: list[tuple[ExperimentSpec, Preflight]],
    user: User | None,
    via: str,
    trigger: dict[str, Any] | None,
) -> Study:
    now = database_now()
    actor = user.username if user else via
    study = Study.objects.create(
        team=team,
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        baseline=spec.baseline,
        priority=spec.priority,
        tags=list(spec.tags),
        trigger=trigger or {},
        created_by=user,
        created_via=via,
    )
    rows = Experiment.objects.bulk_create(
        Experiment(
            team=team,
            study=study,
            index=index,
            name=point.variant.name,
            spec=point.canonical(),
            spec_sha256=point.sha256(),
            preflight=found.model_dump(mode="json"),
            priority=spec.priority,
            device_kind=point.resources.device,
            device_count=point.devices,
            labels=spec.labels,
            last_seq=1,
        )
        for index, (point, found) in enumerate(points)
    )
    Event.objects.bulk_create(
        Event(
            experiment=row,
            seq=1,
            at=now,
            kind="status",
            actor=actor,
            data={"subject": "experiment", "from": None, "to": str(Status.QUEUED), "reason": "submitted"},
        )
        for row in rows
    )
    for row, (_, found) in zip(rows, points, strict=True):
        if found.failures:
            failure: Failure = found.failures[0]
            transition(
                row,
                to=Status.FAILED,
                actor="preflight",
                reason=failure.message,
                now=now,
                ended_at=now,
                failure=failure.model_dump(mode="json"),
            )
    return study


def _replay(team: Team, key: str, body: str) -> Study | None:
    found = IdempotencyKey.objects.filter(team=team, key=key).select_related("study").first()
    if found is None:
        return None
    if found.body_sha256 != body:
        raise Conflict("this Idempotency-Key was used for another request; use a new key for a new study")
    return found.study


def _refuse_senseless(spec: StudySpec) -> None:
    if problems := senseless_problems(spec):
        raise Invalid(str(problems[0]), fields=problems)


def _refuse_paths(spec: StudySpec) -> None:
    """Local paths are for the CLI and for folders that this server offers."""
    problems = []
    for field, source in (("model", spec.model), ("dataset", spec.dataset)):
        path = getattr(source, "path", None)
        if source is None or source.source != "path" or path is None:
            continue
        real = Path(path).expanduser().resolve()
        roots = [root.resolve() for root in settings.STEELYARD_PATH_ROOTS]
        if not any(real.is_relative_to(root) for root in roots):
            offered = ", ".join(str(root) for root in roots) or "none; set STEELYARD_PATH_ROOTS on the server"
            problems.append(
                Problem(path=f"{field}.path", message=f"{path!r} is outside the folders this server offers ({offered})")
            )
    if problems:
        raise Invalid(str(problems[0]), fields=problems)
