"""Every write to studies, experiments, attempts and workers. Keyword-only; views, API and tasks only call these."""

from webapp.runs.services.artifacts import artifact_store
from webapp.runs.services.attempts import (
    MAX_LOST,
    attempt_claim,
    attempt_end,
    attempt_lost,
    attempt_renew,
    events_append,
)
from webapp.runs.services.cancel import experiment_cancel, study_cancel
from webapp.runs.services.reports import report_record
from webapp.runs.services.retry import experiment_retry
from webapp.runs.services.submit import study_submit
from webapp.runs.services.transitions import transition
from webapp.runs.services.workers import worker_drain, worker_heartbeat, worker_register, worker_stop

__all__ = [
    "MAX_LOST",
    "artifact_store",
    "attempt_claim",
    "attempt_end",
    "attempt_lost",
    "attempt_renew",
    "events_append",
    "experiment_cancel",
    "experiment_retry",
    "report_record",
    "study_cancel",
    "study_submit",
    "transition",
    "worker_drain",
    "worker_heartbeat",
    "worker_register",
    "worker_stop",
]
