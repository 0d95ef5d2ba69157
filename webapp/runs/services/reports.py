"""Stores what an attempt measured, exactly once."""

from __future__ import annotations

from django.db import transaction

from experiments.records import Failure, FailureKind, Report
from webapp.core.clock import database_now
from webapp.core.errors import StaleWrite
from webapp.runs.models import Artifact, Attempt, AttemptReport, Experiment, MeasurementRow, Status
from webapp.runs.services.attempts import _end, _running, attempt_end
from webapp.runs.services.transitions import history_append


def report_record(*, attempt_id: int, number: int, report: Report) -> None:
    """Accept the report of a running attempt and end it, its experiment, and its leases in one transaction.

    An unpaired report (benchmarks of the engine alone make them) is no result: the attempt ends as failed.

    Raises:
        StaleWrite: the attempt is not running under this number; that this was tried stands in the history.
    """
    if report.unpaired:
        refusal = Failure(
            kind=FailureKind.INTERNAL,
            message="the report is unpaired: measured alone, without a baseline beside it or quality, so no result",
        )
        attempt_end(attempt_id=attempt_id, number=number, status="failed", failure=refusal, reason=refusal.message)
        return
    try:
        _record(attempt_id, number, report)
    except StaleWrite as refusal:
        experiment_id = Attempt.objects.filter(pk=attempt_id).values_list("experiment_id", flat=True).first()
        if experiment_id is not None:
            history_append(
                experiment_id=experiment_id,
                number=number,
                rows=[("refused", {"reason": f"a report came too late and was not used: {refusal}"})],
                actor="services",
            )
        raise


@transaction.atomic
def _record(attempt_id: int, number: int, report: Report) -> None:
    attempt, experiment = _running(attempt_id, number)
    AttemptReport.objects.create(attempt=attempt, data=report.model_dump(mode="json"))
    if report.status == "succeeded":
        MeasurementRow.objects.bulk_create(
            MeasurementRow(
                team_id=experiment.team_id,
                experiment=experiment,
                metric=m.metric,
                value=m.value,
                unit=m.unit,
                at=m.at,
                low=m.interval.low if m.interval else None,
                high=m.interval.high if m.interval else None,
                n=m.n,
                reason=m.reason or "",
                note=m.note or "",
            )
            for m in report.measurements
        )
        if report.artifact is not None:
            Artifact.objects.create(
                team_id=experiment.team_id,
                experiment=experiment,
                attempt=attempt,
                sha256=report.artifact.sha256,
                bytes=report.artifact.bytes,
                label=report.artifact.label,
                form=report.artifact.form,
                files=report.artifact.files,
            )
    Experiment.objects.filter(pk=experiment.pk).update(
        accepted=attempt, fraction=1.0 if report.status == "succeeded" else experiment.fraction
    )
    reason = report.failure.message if report.failure else "report accepted"
    status = Status(report.status)
    _end(attempt, experiment, status, status, attempt.worker_name, reason, database_now(), report.failure)
