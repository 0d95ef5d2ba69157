"""The demo: queued once, followed in a terminal, told as tables."""

from __future__ import annotations

import io
from typing import Any

import pytest

from experiments.console import Plain
from experiments.records import Event as EngineEvent
from experiments.records import Failure, FailureKind
from tests import factories
from webapp.runs import services
from webapp.runs.demo import demo_queue, demo_specs
from webapp.runs.follow import Follower, all_succeeded, tables
from webapp.runs.models import Experiment, Study

pytestmark = pytest.mark.django_db


def end(experiment: Experiment, **changes: Any) -> None:
    attempt = factories.running(experiment)
    services.report_record(attempt_id=attempt.pk, number=attempt.number, report=factories.report(experiment, **changes))


def test_the_demo_weighs_each_format_beside_fp32() -> None:
    for spec in demo_specs():
        names = [point.variant.name for point in spec.expand()]
        assert names[0] == "fp32"
        assert {"fp32-ort", "fp16", "bf16", "int8-ort"} <= set(names)


def test_the_demo_is_queued_once_and_what_failed_is_run_again() -> None:
    team = factories.team()
    first = demo_queue(team=team)
    assert [study.created_via for study in first] == ["demo", "demo"]
    assert not Experiment.objects.exclude(status="queued").exists()
    services.study_cancel(team=team, study_id=first[0].pk, actor="someone")
    assert demo_queue(team=team) == first
    assert set(first[0].experiments.values_list("status", flat=True)) == {"cancelled"}
    assert demo_queue(team=team, again=True) == first
    assert set(first[0].experiments.values_list("status", flat=True)) == {"queued"}
    assert Study.objects.count() == 2


def test_a_terminal_sees_stages_ends_and_reasons_once() -> None:
    factories.worker()
    study = factories.study(names=("fp32", "broken"))
    first, second = study.experiments.order_by("index")
    said = io.StringIO()
    follower = Follower([study], Plain(said))
    assert not follower.look()
    attempt = factories.running(first)
    event = EngineEvent(seq=1, t_ns=1, kind="stage", stage="load", state="started", message="training", fraction=0.0)
    services.events_append(attempt_id=attempt.pk, number=1, events=[event])
    assert not follower.look()
    assert not follower.look()
    services.report_record(attempt_id=attempt.pk, number=1, report=factories.report(first))
    failure = Failure(kind=FailureKind.CANARY, message="outputs are not finite")
    end(second, status="failed", failure=failure)
    assert follower.look()
    assert said.getvalue().splitlines() == [
        "a study: fp32: load: training",
        "a study: fp32: succeeded",
        "a study: broken: failed: outputs are not finite",
    ]
    assert not all_succeeded([study])
    text = tables([study])
    assert "broken: canary: outputs are not finite" in text
    assert "=> fp32 runs at 10.0 ms (p50)" in text
