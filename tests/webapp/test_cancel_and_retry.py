"""Cancel and run again: from any state, and a second click changes nothing."""

from __future__ import annotations

import pytest

from tests import factories
from webapp.core.errors import NotFound
from webapp.runs import services
from webapp.runs.models import Attempt, Experiment, MeasurementRow

pytestmark = pytest.mark.django_db


@pytest.fixture
def experiment() -> Experiment:
    factories.worker()
    return factories.study(names=("fp32",)).experiments.get()


def cancel(experiment: Experiment) -> Experiment:
    services.experiment_cancel(team=experiment.team, experiment_id=experiment.pk, actor="someone")
    experiment.refresh_from_db()
    return experiment


def test_a_waiting_experiment_is_cancelled_at_once(experiment: Experiment) -> None:
    assert cancel(experiment).status == "cancelled"
    assert cancel(experiment).status == "cancelled"


def test_a_leased_one_gives_its_devices_back_and_is_never_claimed(experiment: Experiment) -> None:
    attempt = factories.leased(experiment)
    assert cancel(experiment).status == "cancelled"
    assert factories.held() == set()
    assert services.attempt_claim(attempt_id=attempt.pk, number=1, worker_name="w1") is None


def test_a_running_one_is_asked_to_stop(experiment: Experiment) -> None:
    attempt = factories.running(experiment)
    assert services.attempt_renew(attempt_id=attempt.pk, number=1) == "go on"
    assert cancel(experiment).status == "running"
    assert services.attempt_renew(attempt_id=attempt.pk, number=1) == "cancel"
    services.attempt_end(attempt_id=attempt.pk, number=1, status="cancelled", reason="cancelled")
    experiment.refresh_from_db()
    assert experiment.status == "cancelled"


def test_a_running_one_whose_worker_is_lost_is_not_queued_again(experiment: Experiment) -> None:
    attempt = factories.running(experiment)
    cancel(experiment)
    services.attempt_lost(attempt_id=attempt.pk, number=1, actor="reaper", reason="silent")
    experiment.refresh_from_db()
    assert experiment.status == "cancelled"


def test_an_ended_one_stays_as_it_is(experiment: Experiment) -> None:
    attempt = factories.running(experiment)
    services.report_record(attempt_id=attempt.pk, number=1, report=factories.report(experiment))
    assert cancel(experiment).status == "succeeded"


def test_a_study_is_cancelled_whole() -> None:
    study = factories.study(names=("a", "b", "c"))
    services.study_cancel(team=study.team, study_id=study.pk, actor="someone")
    assert set(study.experiments.values_list("status", flat=True)) == {"cancelled"}


def test_another_teams_objects_are_not_there(experiment: Experiment) -> None:
    other = factories.team()
    for act in (services.experiment_cancel, services.experiment_retry):
        with pytest.raises(NotFound):
            act(team=other, experiment_id=experiment.pk, actor="someone")
    with pytest.raises(NotFound):
        services.study_cancel(team=other, study_id=experiment.study_id, actor="someone")


def test_run_again_forgets_the_old_numbers_but_not_the_old_report(experiment: Experiment) -> None:
    attempt = factories.running(experiment)
    services.report_record(attempt_id=attempt.pk, number=1, report=factories.report(experiment))
    services.experiment_retry(team=experiment.team, experiment_id=experiment.pk, actor="someone")
    services.experiment_retry(team=experiment.team, experiment_id=experiment.pk, actor="someone")
    experiment.refresh_from_db()
    assert (experiment.status, experiment.accepted, experiment.fraction) == ("queued", None, 0.0)
    assert not MeasurementRow.objects.exists()
    attempt.refresh_from_db()
    assert attempt.report.data["status"] == "succeeded"
    second = factories.running(experiment)
    assert second.number == 2
    services.report_record(attempt_id=second.pk, number=2, report=factories.report(experiment))
    assert Attempt.objects.filter(experiment=experiment).count() == 2
