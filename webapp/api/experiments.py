"""Experiments: state, events, log, cancel, retry."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest, HttpResponseBase
from ninja import Path, Query, Router

from webapp.accounts.models import Role
from webapp.accounts.services import audit
from webapp.api.auth import caller
from webapp.api.errors import errors
from webapp.api.schemas import EventOut, EventPage, ExperimentDetail, LogSlice
from webapp.api.waiting import LONGEST_S, wait_until
from webapp.core.errors import NoArtifact
from webapp.runs import downloads, selectors, services
from webapp.runs.models import TERMINAL, Experiment

router = Router(tags=["experiments"])

Id = Annotated[int, Path(ge=1, le=2**63 - 1)]
Seq = Annotated[int, Query(ge=0, le=2**63 - 1, description="Sequence number of the last event that was seen.")]
Wait = Annotated[float, Query(ge=0, le=LONGEST_S, description="Seconds to wait for the first event.")]
Offset = Annotated[
    int, Query(ge=-(2**62), le=2**62, description="Bytes to skip; a negative number counts from the end.")
]
Limit = Annotated[int, Query(ge=1, le=1 << 20, description="Bytes to read.")]
Number = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Of which attempt; default: the newest.")]


def _detail(request: HttpRequest, row: Experiment) -> ExperimentDetail:
    return ExperimentDetail.whole(request, row, selectors.attempts(row), selectors.report_of(row))


@router.get("/experiments/{experiment_id}", response={200: ExperimentDetail, **errors(404)}, summary="One experiment")
def get_experiment(request: HttpRequest, experiment_id: Id) -> ExperimentDetail:
    """Its state, spec, attempts and, once it has ended, its report."""
    return _detail(request, selectors.experiment(caller(request).team, experiment_id))


@router.get("/experiments/{experiment_id}/events", response={200: EventPage, **errors(404)}, summary="What happened")
def get_events(request: HttpRequest, experiment_id: Id, after: Seq = 0, wait: Wait = 0.0) -> EventPage:
    """Events with a higher `seq` than `after`, at most 500.

    With `wait` the answer comes as soon as there is one, or the experiment has ended, or the time is over; a busy
    server may answer earlier with none.
    """
    team = caller(request).team
    row = selectors.experiment(team, experiment_id)

    def news() -> bool:
        row.refresh_from_db(fields=["last_seq", "status"])
        return row.last_seq > after or row.status in TERMINAL

    wait_until(news, wait)
    events = [EventOut.of(event) for event in selectors.events(row, after)]
    last = events[-1].seq if events else after
    return EventPage(events=events, last_seq=last, ended=row.status in TERMINAL and last >= row.last_seq)


@router.get("/experiments/{experiment_id}/logs", response={200: LogSlice, **errors(404)}, summary="Log")
def get_logs(
    request: HttpRequest, experiment_id: Id, offset: Offset = 0, limit: Limit = 65_536, attempt: Number = None
) -> LogSlice:
    """Part of the log from byte `offset`, by whole lines where there are any."""
    row = selectors.experiment(caller(request).team, experiment_id)
    return LogSlice.of(row, *selectors.log_slice(row, offset, limit, number=attempt))


#: What `artifact` gives, for the schema.
_ZIP: dict[str, Any] = {
    "responses": {200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}}
}


@router.get(
    "/experiments/{experiment_id}/artifact",
    response={200: None, **errors(404)},
    openapi_extra=_ZIP,
    summary="The optimized model",
)
def get_artifact(request: HttpRequest, experiment_id: Id) -> HttpResponseBase:
    """A zip of the model's files with README.md (what it is, what it measured, how to load it) and spec.yaml.

    404 `no_artifact` says why there is nothing to download: not yet, failed, or removed.
    """
    who = caller(request)
    row = selectors.experiment(who.team, experiment_id)
    artifact = selectors.downloadable(row)
    report = selectors.report_of(row)
    if report is None:
        raise NoArtifact("there is no artifact yet")
    audit(team=who.team, actor=who.name, action="artifact.download", target=f"experiment {row.pk}")
    return downloads.archive(row, artifact, report)


@router.post(
    "/experiments/{experiment_id}/cancel", response={200: ExperimentDetail, **errors(404)}, summary="Cancel one"
)
def cancel_experiment(request: HttpRequest, experiment_id: Id) -> ExperimentDetail:
    """From any state; idempotent. A running one stops within ten seconds."""
    who = caller(request)
    who.require(Role.SUBMITTER)
    services.experiment_cancel(team=who.team, experiment_id=experiment_id, actor=who.name)
    return _detail(request, selectors.experiment(who.team, experiment_id))


@router.post(
    "/experiments/{experiment_id}/retry", response={200: ExperimentDetail, **errors(404)}, summary="Run one again"
)
def retry_experiment(request: HttpRequest, experiment_id: Id) -> ExperimentDetail:
    """An ended experiment is queued again; one that waits or runs is left alone, so that a repeat changes nothing."""
    who = caller(request)
    who.require(Role.SUBMITTER)
    services.experiment_retry(team=who.team, experiment_id=experiment_id, actor=who.name)
    return _detail(request, selectors.experiment(who.team, experiment_id))
