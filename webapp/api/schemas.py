"""What the API answers, as models; where the engine has a record for it, that record is the model."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from pydantic import BaseModel, Field

from experiments.preflight import Preflight
from experiments.records import DeviceFacts, Failure, Report
from webapp.api.body import Trigger
from webapp.runs.models import TERMINAL, Attempt, Event, Experiment
from webapp.runs.selectors import QueueSnapshot, StudyView

StatusName = Literal["queued", "running", "succeeded", "failed", "cancelled"]


def address(request: HttpRequest, name: str, **arguments: int) -> str:
    """The absolute address of a view, with the installation's public name where it has one."""
    path = reverse(name, kwargs=arguments)
    public: str = settings.STEELYARD_URL
    return f"{public}{path}" if public else request.build_absolute_uri(path)


class StudyLinks(BaseModel):
    """Where a study lives."""

    api: str
    page: str = Field(description="For people.")
    results: str
    cancel: str

    @classmethod
    def of(cls, request: HttpRequest, study_id: int) -> StudyLinks:
        """The links of a study."""
        api = address(request, "api:get_study", study_id=study_id)
        page = address(request, "runs:study", study_id=study_id)
        return cls(api=api, page=page, results=f"{api}/results", cancel=f"{api}/cancel")


class ExperimentLinks(BaseModel):
    """Where an experiment lives."""

    api: str
    page: str = Field(description="For people.")
    events: str
    logs: str
    artifact: str = Field(description="The optimized model, once there is one.")

    @classmethod
    def of(cls, request: HttpRequest, experiment_id: int) -> ExperimentLinks:
        """The links of an experiment."""
        api = address(request, "api:get_experiment", experiment_id=experiment_id)
        page = address(request, "runs:experiment", experiment_id=experiment_id)
        return cls(api=api, page=page, events=f"{api}/events", logs=f"{api}/logs", artifact=f"{api}/artifact")


class ExperimentState(BaseModel):
    """One experiment of a study: where it is, and what was known before it ran (facts of the model left out)."""

    id: int
    name: str
    status: StatusName
    stage: str
    fraction: float = Field(description="Done, 0 to 1.")
    seconds_left: float | None
    failure: Failure | None
    preflight: Preflight
    spec_sha256: str
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    last_seq: int = Field(description="Sequence number of the newest event.")
    links: ExperimentLinks

    @classmethod
    def of(cls, request: HttpRequest, row: Experiment) -> ExperimentState:
        """The state of a row."""
        # All experiments of a study have one model: its facts, said a thousand times, would be half of the answer.
        return cls(**{**_state(request, row), "preflight": {**row.preflight, "facts": None}})


def _state(request: HttpRequest, row: Experiment) -> dict[str, Any]:
    return {
        "id": row.pk,
        "name": row.name,
        "status": str(row.status),
        "stage": row.stage,
        "fraction": row.fraction,
        "seconds_left": row.seconds_left,
        "failure": row.failure,
        "preflight": row.preflight,
        "spec_sha256": row.spec_sha256,
        "queued_at": row.queued_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "last_seq": row.last_seq,
        "links": ExperimentLinks.of(request, row.pk),
    }


class AttemptState(BaseModel):
    """One execution of an experiment."""

    number: int
    status: Literal["leased", "running", "succeeded", "failed", "cancelled", "lost"]
    worker: str
    devices: list[str]
    claimed_at: datetime | None
    ended_at: datetime | None
    failure: Failure | None

    @classmethod
    def of(cls, row: Attempt) -> AttemptState:
        """The state of a row."""
        return cls.model_validate(
            {
                "number": row.number,
                "status": str(row.status),
                "worker": row.worker_name,
                "devices": row.devices,
                "claimed_at": row.claimed_at,
                "ended_at": row.ended_at,
                "failure": row.failure,
            }
        )


class ExperimentDetail(ExperimentState):
    """One experiment, whole; raw samples are in the study's results."""

    study_id: int
    baseline: str
    spec: dict[str, Any] = Field(description="Canonical ExperimentSpec, complete in itself.")
    priority: int
    device_kind: str
    device_count: int
    attempts: list[AttemptState] = Field(description="Newest first.")
    report: Report | None = Field(description="What it says, once it has ended; without raw samples.")

    @classmethod
    def whole(
        cls, request: HttpRequest, row: Experiment, attempts: list[Attempt], report: Report | None
    ) -> ExperimentDetail:
        """Everything about a row."""
        light = report and report.model_copy(
            update={"measurements": tuple(m.model_copy(update={"samples": None}) for m in report.measurements)}
        )
        return cls(
            **_state(request, row),
            study_id=row.study_id,
            baseline=row.study.baseline,
            spec=row.spec,
            priority=row.priority,
            device_kind=row.device_kind,
            device_count=row.device_count,
            attempts=[AttemptState.of(attempt) for attempt in attempts],
            report=light,
        )


class StudyTrigger(Trigger):
    """What made CI submit."""


class StudyRow(BaseModel):
    """A study in a list."""

    id: int
    name: str
    status: StatusName = Field(description="Derived from its experiments.")
    counts: dict[str, int] = Field(description="Experiments by status.")
    baseline: str
    priority: int
    tags: list[str]
    trigger: StudyTrigger | None
    created_by: str | None
    created_via: str
    created_at: datetime
    links: StudyLinks

    @classmethod
    def of(cls, request: HttpRequest, view: StudyView) -> StudyRow:
        """The row of a study."""
        return cls(**_row(request, view))


def _row(request: HttpRequest, view: StudyView) -> dict[str, Any]:
    study = view.study
    return {
        "id": study.pk,
        "name": study.name,
        "status": view.status,
        "counts": dict(view.counts),
        "baseline": study.baseline,
        "priority": study.priority,
        "tags": study.tags,
        "trigger": study.trigger or None,
        "created_by": study.created_by.username if study.created_by else None,
        "created_via": study.created_via,
        "created_at": study.created_at,
        "links": StudyLinks.of(request, study.pk),
    }


class StudyDetail(StudyRow):
    """A study with the state of its experiments, the baseline first. Its spec is in its results."""

    experiments: list[ExperimentState]

    @classmethod
    def whole(cls, request: HttpRequest, view: StudyView, rows: list[Experiment]) -> StudyDetail:
        """A study and its rows."""
        return cls(**_row(request, view), experiments=[ExperimentState.of(request, row) for row in rows])


class StudyPage(BaseModel):
    """Some studies, newest first."""

    items: list[StudyRow]
    next_cursor: str | None = Field(description="Send it as 'cursor' for the page after; null at the end.")


class EventOut(BaseModel):
    """One thing that happened to an experiment."""

    seq: int = Field(description="Rises by one over all attempts of the experiment.")
    at: datetime
    kind: str = Field(description="status, stage, progress, log, measurement, failure, report, cancel, refused")
    attempt: int = Field(description="Number of the attempt; 0 for the experiment itself.")
    actor: str
    data: dict[str, Any]

    @classmethod
    def of(cls, row: Event) -> EventOut:
        """The event of a row."""
        return cls(
            seq=row.seq, at=row.at, kind=row.kind, attempt=row.attempt_number, actor=row.actor, data=dict(row.data)
        )


class EventPage(BaseModel):
    """Events in order."""

    events: list[EventOut]
    last_seq: int = Field(description="Send it as 'after' for what comes next.")
    ended: bool = Field(description="True if the experiment has ended and nothing more is to come.")


class LogSlice(BaseModel):
    """Part of the log of one attempt."""

    text: str
    next_offset: int = Field(description="Byte to ask for next.")
    ended: bool = Field(description="True if the experiment has ended: an empty 'text' then is the end of the log.")

    @classmethod
    def of(cls, row: Experiment, text: str, next_offset: int) -> LogSlice:
        """A piece of the row's log."""
        return cls(text=text, next_offset=next_offset, ended=row.status in TERMINAL)


class DeviceState(BaseModel):
    """One device of a worker."""

    facts: DeviceFacts
    busy: bool


class WorkerState(BaseModel):
    """A worker that has registered and not said goodbye."""

    name: str
    host: str
    alive: bool = Field(description="False: it fell silent; nothing is given to it.")
    draining: bool
    labels: dict[str, str]
    started_at: datetime
    heartbeat_at: datetime
    devices: list[DeviceState]


class WorkerList(BaseModel):
    """Who can run experiments."""

    items: list[WorkerState]

    @classmethod
    def of(cls, snapshot: QueueSnapshot) -> WorkerList:
        """The workers of a snapshot."""
        return cls(
            items=[
                WorkerState(
                    name=view.worker.name,
                    host=view.worker.host,
                    alive=view.alive,
                    draining=view.worker.draining,
                    labels=view.worker.labels,
                    started_at=view.worker.started_at,
                    heartbeat_at=view.worker.heartbeat_at,
                    devices=[DeviceState(facts=d.facts, busy=d.attempt is not None) for d in view.devices],
                )
                for view in snapshot.workers
            ]
        )


class PluginEntry(BaseModel):
    """One model source, data source, technique, runtime or layout."""

    name: str
    title: str
    summary: str
    origin: str
    config: dict[str, Any] = Field(alias="schema", description="JSON schema of what may be set.")
    tasks: list[str] | None = None
    devices: list[str] | None = None
    forms: list[str] | None = None
    form: str | None = None
    label: str | None = None
    family: str | None = Field(default=None, description="E.g. 'int8', 'pruning'.")
    textbook: dict[str, str | tuple[float, float] | None] | None = Field(
        default=None, description="What is claimed: in words, and as ranges (speedup, shrink: times; loss: a share)."
    )


class MetricEntry(BaseModel):
    """One metric."""

    name: str
    title: str
    unit: str
    higher_is_better: bool | None
    definition: str
    source: str
    group: str


class Catalog(BaseModel):
    """Everything that a spec may name."""

    models: list[PluginEntry]
    datasets: list[PluginEntry]
    techniques: list[PluginEntry]
    runtimes: list[PluginEntry]
    layouts: list[PluginEntry]
    metrics: list[MetricEntry]
