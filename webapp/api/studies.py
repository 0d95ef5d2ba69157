"""Studies: submit, list, follow, results, cancel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Header, Path, Query, Router
from ninja.responses import Status as Answer
from pydantic import BaseModel, ConfigDict, Field

from experiments import table
from experiments.records import StudyReport, digest
from webapp.accounts.models import Role
from webapp.api.auth import caller
from webapp.api.body import read_submission
from webapp.api.errors import errors
from webapp.api.openapi import SUBMISSION_BODY
from webapp.api.schemas import StatusName, StudyDetail, StudyPage, StudyRow, address
from webapp.api.throttle import TeamRate
from webapp.runs import selectors, services
from webapp.runs.models import Study

router = Router(tags=["studies"])

#: The largest key of a bigint column; anything above is no study.
Id = Annotated[int, Path(ge=1, le=2**63 - 1)]


class StudyQuery(BaseModel):
    """Which studies to list."""

    model_config = ConfigDict(extra="ignore")

    q: str = Field(default="", max_length=200, description="Part of the name.")
    status: StatusName | None = None
    tag: str = Field(default="", max_length=60)
    via: Literal["", "web", "api", "demo"] = ""
    repository: str = Field(default="", max_length=200)
    branch: str = Field(default="", max_length=200)
    commit: str = Field(default="", max_length=64)
    cursor: str | None = Field(default=None, max_length=20, description="'next_cursor' of the page before.")
    limit: int = Field(default=50, ge=1, le=200)


def _detail(request: HttpRequest, study: Study) -> StudyDetail:
    return StudyDetail.whole(request, selectors.study_status(study), selectors.experiments(study))


@router.post(
    "/studies",
    response={202: StudyDetail, **errors(400, 409, 413)},
    openapi_extra={"requestBody": SUBMISSION_BODY},
    throttle=[TeamRate(count=600, seconds=60.0)],
    summary="Queue a study",
)
def submit_study(
    request: HttpRequest,
    response: HttpResponse,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=200,
            description="The same key and body twice give the first study; another body under the key is a conflict.",
        ),
    ] = None,
) -> Answer[StudyDetail]:
    """The body is a spec, as JSON or YAML of at most 1 MB, with an optional trigger.

    Experiments that no known worker could run are created as failed, with the reason; the others are queued.
    """
    who = caller(request)
    who.require(Role.SUBMITTER)
    spec, trigger = read_submission(request)
    data = trigger.model_dump(mode="json", exclude_none=True) if trigger else None
    study = services.study_submit(
        team=who.team,
        spec=spec,
        user=who.user,
        via="api",
        trigger=data,
        idempotency_key=idempotency_key,
        body_sha256=digest({"spec": spec.model_dump(mode="json"), "trigger": data}),
    )
    response["Location"] = address(request, "api:get_study", study_id=study.pk)
    return Answer(202, _detail(request, study))


@router.get("/studies", response={200: StudyPage, **errors()}, summary="List studies, newest first")
def list_studies(request: HttpRequest, wanted: Query[StudyQuery]) -> StudyPage:
    """The team's studies, filtered; next_cursor leads on."""
    filters = selectors.StudyFilter(
        text=wanted.q,
        status=wanted.status or "",
        tag=wanted.tag,
        via=wanted.via,
        repository=wanted.repository,
        branch=wanted.branch,
        commit=wanted.commit,
    )
    page = selectors.studies(caller(request).team, filters, cursor=wanted.cursor, limit=wanted.limit)
    return StudyPage(items=[StudyRow.of(request, view) for view in page.items], next_cursor=page.next_cursor)


@router.get("/studies/{study_id}", response={200: StudyDetail, **errors(404)}, summary="State of a study")
def get_study(request: HttpRequest, study_id: Id) -> StudyDetail:
    """Its status and that of each experiment."""
    return _detail(request, selectors.study(caller(request).team, study_id))


#: What `results` gives beside JSON, for the schema.
_TEXTS: dict[str, Any] = {
    "responses": {200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("text/csv", "text/markdown")}}}
}


@router.get(
    "/studies/{study_id}/results",
    response={200: StudyReport, **errors(404)},
    openapi_extra=_TEXTS,
    summary="Results of a study",
)
def get_results(request: HttpRequest, study_id: Id, format: Literal["json", "csv", "md"] = "json") -> HttpResponse:
    """Reports of all experiments that have ended, with intervals, ratios to the baseline and fingerprints.

    `json` is the whole report with every raw sample, as `steelyard run --json` writes it; `csv` has one row per
    measurement; `md` is the table that people read.
    """
    report = selectors.study_report(caller(request).team, study_id)
    match format:
        case "csv":
            response = HttpResponse(table.render_csv(report), content_type="text/csv; charset=utf-8")
            response["Content-Disposition"] = f'attachment; filename="study-{study_id}.csv"'
        case "md":
            response = HttpResponse(table.render_markdown(report), content_type="text/markdown; charset=utf-8")
        case "json":
            response = HttpResponse(report.model_dump_json(), content_type="application/json")
    return response


@router.post("/studies/{study_id}/cancel", response={200: StudyDetail, **errors(404)}, summary="Cancel a study")
def cancel_study(request: HttpRequest, study_id: Id) -> StudyDetail:
    """Every experiment that has not ended; idempotent. Running ones stop within ten seconds."""
    who = caller(request)
    who.require(Role.SUBMITTER)
    return _detail(request, services.study_cancel(team=who.team, study_id=study_id, actor=who.name))
