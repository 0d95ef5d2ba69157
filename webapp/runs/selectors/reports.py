"""What was measured, as the engine's own records."""

from __future__ import annotations

from experiments.records import Failure, FailureKind, Report, StudyReport
from experiments.verdict import verdict
from webapp.accounts.models import Team
from webapp.runs.models import TERMINAL, AttemptReport, Experiment, Status
from webapp.runs.selectors.studies import study


def report_of(experiment: Experiment) -> Report | None:
    """The report of an ended experiment; one without a stored report says why; None while it is open."""
    if experiment.status not in TERMINAL:
        return None
    stored = AttemptReport.objects.filter(attempt=experiment.accepted_id).first() if experiment.accepted_id else None
    return _report(experiment, stored)


def study_report(team: Team, study_id: int) -> StudyReport:
    """All reports of a study's ended experiments, failed and cancelled ones too, with the verdict; three queries.

    Raises:
        NotFound: there is no such study in this team.
    """
    found = study(team, study_id)
    ended = list(found.experiments.filter(status__in=TERMINAL).order_by("index"))
    stored = AttemptReport.objects.in_bulk([e.accepted_id for e in ended if e.accepted_id], field_name="attempt_id")
    report = StudyReport(
        name=found.name,
        baseline=found.baseline,
        spec=found.spec,
        experiments=tuple(_report(e, stored.get(e.accepted_id)) for e in ended),
    )
    return report.model_copy(update={"verdict": verdict(report)})


def _report(experiment: Experiment, stored: AttemptReport | None) -> Report:
    if stored is not None:
        return Report.model_validate(stored.data)
    cancelled = experiment.status == Status.CANCELLED
    failure = (
        Failure.model_validate(experiment.failure)
        if experiment.failure
        else Failure(
            kind=FailureKind.CANCELLED if cancelled else FailureKind.INTERNAL,
            message="cancelled before it had a result" if cancelled else "ended without a report",
        )
    )
    return Report(
        experiment=experiment.name,
        baseline=str(experiment.spec["baseline"]["name"]),
        task=str(experiment.spec.get("task") or experiment.preflight.get("task") or "unknown"),
        spec=experiment.spec,
        status="cancelled" if cancelled else "failed",
        failure=failure,
    )
