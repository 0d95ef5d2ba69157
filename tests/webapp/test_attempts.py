"""The life of an attempt: claimed once, renewed, ended once; late writes are refused."""

from __future__ import annotations

import threading

import pytest

from experiments.records import Event as EngineEvent
from experiments.records import Failure, FailureKind
from tests import factories
from tests.webapp.threads import at_once
from webapp.core.errors import StaleWrite
from webapp.runs import services
from webapp.runs.models import Attempt, AttemptReport, Event, Experiment, MeasurementRow
from webapp.runs.scheduling import tick

pytestmark = pytest.mark.django_db


def one() -> Experiment:
    return factories.study(names=("fp32",)).experiments.get()


def test_an_assigned_experiment_holds_its_cores() -> None:
    factories.worker()
    attempt = factories.leased(one())
    assert (attempt.number, attempt.devices, attempt.worker_name) == (1, ["cpu:0"], "w1")
    assert factories.held() == {"core:0", "core:1"}


def test_a_second_worker_on_the_same_cores_gets_nothing() -> None:
    factories.worker("w1")
    factories.worker("w2", factories.cpu(0, (0,)), factories.cpu(1, (1,)))
    factories.study(names=("a", "b", "c"))
    tick(actor="test")
    tick(actor="test")
    names = set(Attempt.objects.values_list("worker_name", flat=True))
    assert len(names) == 1


def test_a_claim_is_given_once() -> None:
    factories.worker()
    attempt = factories.leased(one())
    claims = [services.attempt_claim(attempt_id=attempt.pk, number=1, worker_name="w1") for _ in range(2)]
    assert claims == [attempt, None]


def test_a_stale_number_or_another_worker_claims_nothing() -> None:
    factories.worker()
    attempt = factories.leased(one())
    assert services.attempt_claim(attempt_id=attempt.pk, number=attempt.number + 1, worker_name="w1") is None
    assert services.attempt_claim(attempt_id=attempt.pk, number=attempt.number, worker_name="other") is None
    assert services.attempt_claim(attempt_id=10**9, number=1, worker_name="w1") is None


def test_a_report_ends_everything_once_and_gives_the_devices_back() -> None:
    factories.worker()
    experiment = one()
    attempt = factories.running(experiment)
    services.report_record(attempt_id=attempt.pk, number=1, report=factories.report(experiment))
    experiment.refresh_from_db()
    assert (experiment.status, experiment.fraction, experiment.accepted_id) == ("succeeded", 1.0, attempt.pk)
    assert factories.held() == set()
    undefined = MeasurementRow.objects.get(experiment=experiment, metric="latency_p99_ms")
    assert (undefined.value, undefined.reason) == (None, "insufficient (3 of 662)")
    with pytest.raises(StaleWrite):
        services.report_record(attempt_id=attempt.pk, number=1, report=factories.report(experiment))
    assert AttemptReport.objects.count() == 1
    assert Event.objects.filter(experiment=experiment, kind="refused").count() == 1


def test_a_failed_report_fails_with_its_typed_reason_and_keeps_no_rows() -> None:
    factories.worker()
    experiment = one()
    attempt = factories.running(experiment)
    failure = Failure(kind=FailureKind.CANARY, message="outputs are not finite")
    report = factories.report(experiment, status="failed", failure=failure)
    services.report_record(attempt_id=attempt.pk, number=1, report=report)
    experiment.refresh_from_db()
    assert experiment.status == "failed"
    assert factories.failure(experiment)["kind"] == "canary"
    assert not MeasurementRow.objects.exists()


def test_an_unpaired_report_is_no_result() -> None:
    factories.worker()
    experiment = one()
    attempt = factories.running(experiment)
    services.report_record(attempt_id=attempt.pk, number=1, report=factories.report(experiment, unpaired=True))
    experiment.refresh_from_db()
    assert experiment.status == "failed"
    assert "unpaired" in factories.failure(experiment)["message"]
    assert not MeasurementRow.objects.exists()
    assert not AttemptReport.objects.exists()


def test_an_expired_lease_is_queued_again_under_a_new_number_and_its_late_report_is_refused() -> None:
    factories.worker()
    experiment = one()
    first = factories.running(experiment)
    factories.expire(first)
    tick(actor="test")  # reaps the first and leases the second
    second = Attempt.objects.get(experiment=experiment, status="leased")
    assert second.number == 2
    with pytest.raises(StaleWrite):
        services.report_record(attempt_id=first.pk, number=1, report=factories.report(experiment))
    with pytest.raises(StaleWrite):
        services.events_append(attempt_id=first.pk, number=1, events=[])
    assert services.attempt_renew(attempt_id=first.pk, number=1) == "stale"
    assert not AttemptReport.objects.exists()
    history = list(Event.objects.filter(experiment=experiment).order_by("seq").values_list("seq", flat=True))
    assert history == list(range(1, len(history) + 1))


def test_losing_workers_does_not_loop_for_ever() -> None:
    factories.worker()
    experiment = one()
    for number in range(1, services.MAX_LOST + 1):
        attempt = factories.running(experiment)
        assert attempt.number == number
        services.attempt_lost(attempt_id=attempt.pk, number=number, actor="test", reason="the machine went away")
    experiment.refresh_from_db()
    assert experiment.status == "failed"
    assert factories.failure(experiment)["kind"] == "worker_lost"
    assert "the machine went away" in factories.failure(experiment)["message"]


def test_handing_back_is_no_fault() -> None:
    factories.worker()
    experiment = one()
    for number in range(1, services.MAX_LOST + 3):
        attempt = factories.running(experiment)
        services.attempt_lost(attempt_id=attempt.pk, number=number, actor="w1", reason="stopped", fault=False)
    experiment.refresh_from_db()
    assert experiment.status == "queued"


def test_progress_of_the_engine_moves_the_experiment() -> None:
    factories.worker()
    experiment = one()
    attempt = factories.running(experiment)
    said = [
        EngineEvent(seq=1, t_ns=1, kind="stage", stage="measure", state="started", fraction=0.4),
        EngineEvent(seq=2, t_ns=2, kind="progress", fraction=0.5, seconds_left=30),
        EngineEvent(seq=3, t_ns=3, kind="log", message="<b>hello</b>"),
    ]
    last = services.events_append(attempt_id=attempt.pk, number=1, events=said)
    experiment.refresh_from_db()
    assert (experiment.stage, experiment.fraction, experiment.seconds_left) == ("measure", 0.5, 30)
    assert experiment.last_seq == last == Event.objects.filter(experiment=experiment).count()


def test_a_status_never_jumps_where_it_must_not() -> None:
    experiment = one()
    with pytest.raises(StaleWrite):
        services.transition(experiment, to="succeeded", actor="test", reason="wishful")


def test_every_change_has_actor_time_and_reason() -> None:
    factories.worker()
    experiment = one()
    attempt = factories.running(experiment)
    services.report_record(attempt_id=attempt.pk, number=1, report=factories.report(experiment))
    changes = list(Event.objects.filter(experiment=experiment, kind="status", seq__gt=1).order_by("seq"))
    assert [(c.data["subject"], c.data["to"]) for c in changes] == [
        ("attempt", "leased"),
        ("attempt", "running"),
        ("experiment", "running"),
        ("attempt", "succeeded"),
        ("experiment", "succeeded"),
    ]
    assert all(c.actor and c.at and c.data["reason"] for c in changes)


@pytest.mark.django_db(transaction=True)
def test_delivered_twice_at_once_runs_once() -> None:
    """FC-043: a message that is delivered again finds its attempt claimed."""
    factories.worker()
    attempt = factories.leased(one())
    claims = at_once(lambda: services.attempt_claim(attempt_id=attempt.pk, number=1, worker_name="w1"), threads=8)
    assert sum(isinstance(claim, Attempt) for claim in claims) == 1
    assert sum(claim is None for claim in claims) == 7


@pytest.mark.django_db(transaction=True)
def test_a_report_that_races_a_reaper_wins_or_loses_whole() -> None:
    factories.worker()
    experiment = one()
    attempt = factories.running(experiment)
    report = factories.report(experiment)

    def record() -> None:
        services.report_record(attempt_id=attempt.pk, number=1, report=report)

    def lose() -> None:
        services.attempt_lost(attempt_id=attempt.pk, number=1, actor="test", reason="silent")

    calls = iter([record, lose, record, lose])
    lock = threading.Lock()

    def next_call() -> None:
        with lock:
            call = next(calls)
        call()

    results = at_once(next_call, threads=4)
    assert sum(result is None for result in results) == 1
    assert sum(isinstance(result, StaleWrite) for result in results) == 3
    experiment.refresh_from_db()
    attempt.refresh_from_db()
    pair = (experiment.status, attempt.status, AttemptReport.objects.count())
    assert pair in {("succeeded", "succeeded", 1), ("queued", "lost", 0)}
    assert factories.held() == set()


@pytest.mark.django_db(transaction=True)
def test_workers_that_tick_together_lease_each_device_once() -> None:
    for number in range(3):
        factories.worker(f"w{number}", factories.cuda(2 * number), factories.cuda(2 * number + 1))
    factories.study(names=tuple(f"e{n}" for n in range(10)), resources={"device": "cuda"})
    results = at_once(lambda: tick(actor="test"), threads=6)
    assert not [result for result in results if isinstance(result, Exception)]
    assert Attempt.objects.count() == 6
    assert Attempt.objects.values("experiment").distinct().count() == 6
