"""Reads: scoped by team, constant numbers of queries, pages that do not overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from pytest_django import DjangoAssertNumQueries

from experiments.records import Failure, FailureKind
from tests import factories
from webapp.accounts.models import Team
from webapp.core.errors import Invalid, NotFound
from webapp.runs import selectors, services
from webapp.runs.models import Attempt, Experiment, Study
from webapp.runs.selectors import StudyFilter, derive_status

pytestmark = pytest.mark.django_db


def finish(experiment: Experiment, **changes: Any) -> None:
    attempt = factories.running(experiment)
    report = factories.report(experiment, **changes)
    services.report_record(attempt_id=attempt.pk, number=attempt.number, report=report)


def names(team: Team, **filters: str) -> list[str]:
    return [view.study.name for view in selectors.studies(team, StudyFilter(**filters)).items]


def test_another_teams_objects_are_as_good_as_absent() -> None:
    mine, theirs = factories.study(), factories.study()
    assert [view.study for view in selectors.studies(mine.team).items] == [mine]
    for read in (
        lambda: selectors.study(mine.team, theirs.pk),
        lambda: selectors.study_report(mine.team, theirs.pk),
        lambda: selectors.experiment(mine.team, theirs.experiments.first().pk),  # type: ignore[union-attr]
    ):
        with pytest.raises(NotFound):
            read()


def test_pages_show_every_study_once_the_newest_first_even_while_more_come() -> None:
    team = factories.team()
    made = [factories.study(team, names=("fp32",)).pk for _ in range(7)]
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = selectors.studies(team, cursor=cursor, limit=3)
        seen += [view.study.pk for view in page.items]
        factories.study(team, names=("fp32",))
        if (cursor := page.next_cursor) is None:
            break
    assert seen == made[::-1]


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 30, "²"])
def test_a_cursor_of_ones_own_making_is_refused(cursor: str) -> None:
    with pytest.raises(Invalid):
        selectors.studies(factories.team(), cursor=cursor)


def test_a_list_takes_two_queries_whatever_its_length(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    team = factories.team()
    for count in (1, 12):
        for _ in range(count):
            factories.study(team, names=("a", "b", "c"))
        with django_assert_num_queries(2):
            views = selectors.studies(team).items
            assert [view.total for view in views] == [3] * len(views)
            assert {view.status for view in views} == {"queued"}


def test_a_study_report_takes_three_queries_whatever_its_size(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    factories.worker()
    for size in (1, 4):
        study = factories.study(names=("fp32", *(f"e{n}" for n in range(size))))
        for experiment in study.experiments.order_by("index"):
            finish(experiment)
        with django_assert_num_queries(3):
            assert len(selectors.study_report(study.team, study.pk).experiments) == size + 1


def test_a_report_holds_failed_and_cancelled_ones_too() -> None:
    factories.worker()
    study = factories.study(names=("fp32", "broken", "dropped", "waiting"))
    first, broken, dropped, _ = study.experiments.order_by("index")
    finish(first)
    attempt = factories.running(broken)
    failure = Failure(kind=FailureKind.KILLED, message="killed (signal 9), probably out of memory")
    services.attempt_end(attempt_id=attempt.pk, number=1, status="failed", failure=failure, reason="killed")
    services.experiment_cancel(team=study.team, experiment_id=dropped.pk, actor="someone")
    report = selectors.study_report(study.team, study.pk)
    assert [(e.experiment, e.status) for e in report.experiments] == [
        ("fp32", "succeeded"),
        ("broken", "failed"),
        ("dropped", "cancelled"),
    ]
    assert report.experiments[1].failure == failure
    assert report.experiments[0].find("latency_p50_ms").samples == (10.0, 10.0, 10.0)  # type: ignore[union-attr]
    assert report.verdict


def test_filters_keep_what_they_say() -> None:
    factories.worker()
    team = factories.team()
    done = factories.study(team, names=("fp32",), tags=["nightly"])
    finish(done.experiments.get())
    Study.objects.filter(pk=done.pk).update(name="done", created_via="api", trigger={"branch": "main"})
    waits = factories.study(team, names=("fp32",), tags=["nightly-2"])
    Study.objects.filter(pk=waits.pk).update(name="waits")
    half = factories.study(team, names=("a", "b"))
    Study.objects.filter(pk=half.pk).update(name="half")
    services.experiment_cancel(team=team, experiment_id=half.experiments.get(name="a").pk, actor="someone")
    dropped = factories.study(team, names=("a",))
    Study.objects.filter(pk=dropped.pk).update(name="dropped")
    services.study_cancel(team=team, study_id=dropped.pk, actor="someone")
    assert names(team, status="succeeded") == ["done"]
    assert names(team, status="queued") == ["waits"]
    assert names(team, status="running") == ["half"]
    assert names(team, status="cancelled") == ["dropped"]
    assert names(team, status="failed") == []
    assert names(team, tag="nightly") == ["done"]
    assert names(team, tag="Nightly") == names(team, tag="night") == names(team, tag="é") == []
    assert names(team, text="AIT") == ["waits"]
    assert names(team, via="api") == names(team, branch="main") == ["done"]
    with pytest.raises(Invalid):
        names(team, status="nonsense")
    for view in selectors.studies(team).items:
        assert names(team, status=view.status) == [view.study.name]


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ({"queued": 2}, "queued"),
        ({"queued": 1, "succeeded": 1}, "running"),
        ({"running": 1, "failed": 1}, "running"),
        ({"succeeded": 2, "failed": 1, "cancelled": 1}, "failed"),
        ({"succeeded": 2, "cancelled": 1}, "cancelled"),
        ({"succeeded": 2}, "succeeded"),
    ],
)
def test_a_studys_status_follows_from_its_experiments(counts: dict[str, int], status: str) -> None:
    assert derive_status(counts) == status


def test_events_come_after_a_number_in_order() -> None:
    factories.worker()
    experiment = factories.study(names=("fp32",)).experiments.get()
    factories.running(experiment)
    everything = selectors.events(experiment)
    assert [event.seq for event in everything] == [1, 2, 3, 4]
    assert selectors.events(experiment, after=2) == everything[2:]
    assert selectors.events(experiment, after=2, limit=1) == everything[2:3]


def test_the_queue_says_who_runs_who_waits_and_why(django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    factories.worker("w1", factories.cpu(0, (0,)), factories.cpu(1, (1,)))
    mine = factories.study(names=("fp32", "int8", "fp16"))
    factories.study(names=("theirs",), resources={"device": "cuda"})
    factories.running(mine.experiments.get(name="fp32"))
    with django_assert_max_num_queries(8):
        queue = selectors.queue_snapshot(mine.team)
    [worker] = queue.workers
    assert worker.alive
    assert [device.attempt is not None for device in worker.devices] == [True, True]
    assert [(view.experiment.name, view.mine) for view in queue.running] == [("fp32", True), ("int8", True)]
    waiting = [(view.experiment.name, view.position, view.reason, view.mine) for view in queue.waiting]
    assert waiting == [
        ("fp16", 1, "waits until 1 cpu device is free; next in line", True),
        ("theirs", 2, "no connected worker has a cuda device", False),
    ]


@pytest.fixture
def logged() -> Experiment:
    factories.worker()
    experiment = factories.study(names=("fp32",)).experiments.get()
    attempt = factories.running(experiment)
    Attempt.objects.filter(pk=attempt.pk).update(log="0/1.log")
    path = Path(settings.LOG_ROOT) / "0" / "1.log"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"line {n} é\n" for n in range(1000)))
    return experiment


def test_a_log_is_read_in_whole_lines_until_its_end(logged: Experiment) -> None:
    whole, offset = "", 0
    while True:
        text, following = selectors.log_slice(logged, offset, limit=1000)
        assert following - offset <= 1000
        if following == offset:
            break
        whole, offset = whole + text, following
    assert whole == "".join(f"line {n} é\n" for n in range(1000))


def test_a_logs_tail_begins_with_a_whole_line(logged: Experiment) -> None:
    text, size = selectors.log_tail(logged, limit=100)
    assert text.splitlines()[0].startswith("line ")
    assert text.endswith("line 999 é\n")
    assert selectors.log_slice(logged, size) == ("", size)


def test_a_log_path_that_leaves_the_folder_is_not_read(logged: Experiment) -> None:
    Attempt.objects.update(log="../../../../etc/hostname")
    assert selectors.log_slice(logged) == ("", 0)


def test_a_queue_of_hundreds_reads_no_specs(django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    """A study's spec names all its experiments; read once for each of them it made this page take 18 seconds."""
    factories.study(names=tuple(f"e{n}" for n in range(60)))
    with django_assert_max_num_queries(8) as captured:
        queue = selectors.queue_snapshot()
    assert len(queue.waiting) == 60
    assert not [q["sql"] for q in captured.captured_queries if '"spec"' in q["sql"]]
