"""Every read of studies, experiments, attempts and workers. Each takes the team, or an object that was read by it."""

from webapp.runs.selectors.artifacts import StoredFiles, artifact_of, downloadable, stored_files
from webapp.runs.selectors.devices import is_alive, live_devices
from webapp.runs.selectors.experiments import (
    attempt_orders,
    attempts,
    events,
    experiment,
    experiments,
    status_history,
)
from webapp.runs.selectors.logs import log_path, log_slice, log_tail
from webapp.runs.selectors.queue import DeviceView, QueueSnapshot, RunningView, WaitingView, WorkerView, queue_snapshot
from webapp.runs.selectors.reports import report_of, study_report
from webapp.runs.selectors.studies import Page, StudyFilter, StudyView, derive_status, studies, study, study_status

__all__ = [
    "DeviceView",
    "Page",
    "QueueSnapshot",
    "RunningView",
    "StoredFiles",
    "StudyFilter",
    "StudyView",
    "WaitingView",
    "WorkerView",
    "artifact_of",
    "attempt_orders",
    "attempts",
    "derive_status",
    "downloadable",
    "events",
    "experiment",
    "experiments",
    "is_alive",
    "live_devices",
    "log_path",
    "log_slice",
    "log_tail",
    "queue_snapshot",
    "report_of",
    "status_history",
    "stored_files",
    "studies",
    "study",
    "study_report",
    "study_status",
]
