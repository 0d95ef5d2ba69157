"""Every page for real, empty and failing data; another team's objects are absent; markup stays text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from experiments.records import Failure, FailureKind
from tests import factories
from tests.webapp import study_reports
from tests.webapp.pages import Visitor, text, visitor
from webapp.accounts.models import Role
from webapp.runs import selectors, services
from webapp.runs.models import Attempt, Experiment, Study

pytestmark = pytest.mark.django_db

PAGES = ("/", "/studies", "/studies/new", "/studies/new?mode=yaml", "/queue", "/catalog")


@pytest.fixture
def me() -> Visitor:
    return visitor()


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_for_a_team_that_has_nothing(me: Visitor, path: str) -> None:
    html = me.page(path)
    assert html.count("<h1") == 1
    assert '<html lang="en">' in html


@pytest.mark.parametrize("path", [*PAGES, "/studies/1", "/experiments/1"])
def test_every_page_asks_a_stranger_to_sign_in(path: str) -> None:
    answer = Client().get(path)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/signin/?next=/")


def test_signing_in_with_a_wrong_password_says_so_and_with_the_right_one_opens_the_page() -> None:
    user = factories.user(factories.team(), password="a-long-password-7")
    client = Client()
    wrong = client.post("/signin/", {"username": user.username, "password": "nope", "next": "/queue"})
    assert "Please enter a correct" in text(wrong.content.decode())
    right = client.post("/signin/", {"username": user.username, "password": "a-long-password-7", "next": "/queue"})
    assert right["Location"] == "/queue"
    assert client.post("/signout/")["Location"] == "/signin/"


def test_the_first_page_of_an_empty_team_leads_to_a_first_study(me: Visitor) -> None:
    html = me.page("/")
    assert "Nothing has been weighed yet" in html
    assert 'href="/studies/new"' in html


def test_home_says_what_runs_what_finished_and_what_needs_you(me: Visitor) -> None:
    study_reports.ended_study(me.team, name="all fine")
    study_reports.ended_study(me.team, failed=("fp16",), name="one failed")
    study_reports.waiting_study(me.team, name="still waiting")
    said = text(me.page("/"))
    needs, rest = said.split("Running and waiting")
    assert "one failed" in needs
    assert "all fine" not in needs
    running, finished = rest.split("Finished")
    assert "still waiting" in running
    assert "all fine" in finished


# --------------------------------------------------------------------------------------------------------- studies


def test_the_list_of_studies_keeps_its_filters_in_the_address(me: Visitor) -> None:
    study_reports.ended_study(me.team, name="reviews one", names=["fp32", "fp16"])
    study_reports.waiting_study(me.team, name="digits two", tags=["nightly"])
    assert "digits two" not in me.page("/studies", q="reviews")
    waiting = me.page("/studies?status=queued")
    assert "digits two" in waiting
    assert "reviews one" not in waiting
    assert "digits two" in me.page("/studies", tag="nightly")
    assert "No study fits" in me.page("/studies", q="nothing like it")


def test_the_list_of_studies_has_pages(me: Visitor) -> None:
    for number in range(27):
        factories.study(me.team, ("only",), name=f"study {number:02}")
    first = me.page("/studies", q="study")
    older = re.search(r'href="(\?[^"]*cursor=[^"]*)" rel="next"', first)
    assert older is not None
    second = me.page("/studies" + older[1].replace("&amp;", "&"))
    assert "study 26" in first
    assert "study 26" not in second
    assert "study 01" in second
    assert "q=study" in older[1]


def test_a_senseless_filter_is_a_sentence_not_a_trace(me: Visitor) -> None:
    answer = me.client.get("/studies?status=nonsense")
    assert answer.status_code == 422
    assert "status is one of" in text(answer.content.decode())


def test_an_ended_study_shows_verdict_table_charts_and_limits(me: Visitor) -> None:
    study = study_reports.ended_study(me.team)
    said = text(me.page(f"/studies/{study.pk}"))
    assert "int8-dynamic-onnxruntime is 1.80x [1.75, 1.85] as fast as fp32" in said
    assert "1.80× [1.75, 1.85]" in said
    assert "insufficient (386 of 662)" in said
    assert "Noise floor" in said
    assert "What must hold" in said
    assert "sweet spot" in said
    html = me.page(f"/studies/{study.pk}")
    assert "hx-get" not in html  # nothing polls a study that has ended
    for kind in ("csv", "md", "json"):
        assert f"/api/v1/studies/{study.pk}/results?format={kind}" in html


def test_the_exports_answer_the_session(me: Visitor) -> None:
    study = study_reports.ended_study(me.team, names=["fp32", "fp16"])
    for kind, sign in (("csv", "experiment,"), ("md", "| "), ("json", '"experiments"')):
        answer = me.client.get(f"/api/v1/studies/{study.pk}/results?format={kind}")
        assert answer.status_code == 200
        assert sign in answer.content.decode()


def test_a_failed_experiment_keeps_its_row_with_its_typed_reason(me: Visitor) -> None:
    study = study_reports.ended_study(me.team, failed=("fp16",))
    said = text(me.page(f"/studies/{study.pk}"))
    assert "out of memory : the measured process was killed at 2,012 MiB" in said
    assert "Raise resources.memory_mib" in said


def test_a_study_whose_baseline_failed_still_opens(me: Visitor) -> None:
    study = study_reports.ended_study(me.team, failed=tuple(study_reports.VARIANTS))
    assert "No comparison" in text(me.page(f"/studies/{study.pk}"))


def test_a_study_where_all_was_cancelled_still_opens(me: Visitor) -> None:
    study = study_reports.waiting_study(me.team)
    me.client.post(f"/studies/{study.pk}/cancel")
    said = text(me.page(f"/studies/{study.pk}"))
    assert "0 of 6 succeeded" in said
    assert "cancelled before it had a result" in said


def test_a_running_study_polls_and_stops_when_it_has_ended(me: Visitor) -> None:
    factories.worker()
    study = study_reports.waiting_study(me.team, names=["fp32", "fp16"])
    first, second = selectors.experiments(study)
    study_reports.run(first, until="running")
    html = me.page(f"/studies/{study.pk}")
    assert "ratio so far 1.36" in html
    assert "62 %" in html
    poll = re.search(r'hx-get="(/studies/\d+/live[^"]*)" hx-trigger="every 2s"', html)
    assert poll is not None
    quiet = me.client.get(poll[1].replace("&amp;", "&"))
    assert "ratio so far" not in quiet.content.decode()  # lines that the page has are not sent again
    assert "HX-Trigger-After-Settle" not in quiet
    attempt = Attempt.objects.get(experiment=first)
    services.report_record(
        attempt_id=attempt.pk, number=attempt.number, report=study_reports.report(first.name, first.spec)
    )
    after = me.client.get(poll[1].replace("&amp;", "&"))
    assert after["HX-Trigger-After-Settle"] == "results-changed"
    assert "hx-get" in after.content.decode()
    study_reports.run(second)
    last = me.client.get(poll[1].replace("&amp;", "&")).content.decode()
    assert "hx-get" not in last
    assert "2 of 2 succeeded" in last


def test_the_answer_to_a_poll_replaces_nothing_that_can_be_opened(me: Visitor) -> None:
    factories.worker()
    study = study_reports.waiting_study(me.team, names=["fp32"])
    study_reports.run(selectors.experiments(study)[0], until="running")
    answer = me.client.get(
        f"/studies/{study.pk}/live", {"after": f"{selectors.experiments(study)[0].pk}:0", "ended": "0"}
    )
    html = answer.content.decode()
    assert not re.search(r"<(details|input|textarea|dialog|select)", html)
    assert "beforeend:#log-" in html


@pytest.mark.parametrize("after", ["x", "1:2:3", "1;2", "%00"])
def test_a_poll_with_a_broken_position_is_refused(me: Visitor, after: str) -> None:
    study = study_reports.waiting_study(me.team, names=["fp32"])
    assert me.client.get(f"/studies/{study.pk}/live?after={after}").status_code == 422


def test_other_axes_of_the_chart_come_as_data(me: Visitor) -> None:
    study = study_reports.ended_study(me.team)
    data = me.client.get(f"/studies/{study.pk}/pareto", {"x": "artifact_bytes", "y": "flips", "b": "8"}).json()
    assert data["figure"]["layout"]["meta"]["x"] == "artifact_bytes"
    assert "frontier" in data["summary"]
    assert "<table" in data["table"]


def test_unknown_choices_in_the_address_fall_back(me: Visitor) -> None:
    study = study_reports.ended_study(me.team)
    me.page(f"/studies/{study.pk}", x="nonsense", y="", b="-3")
    me.page(f"/studies/{study.pk}", x="accuracy", y="accuracy", b="99999999999999")


def test_the_spec_of_a_study_comes_as_yaml_that_the_same_parser_reads(me: Visitor) -> None:
    from experiments.spec import parse

    study = study_reports.waiting_study(me.team)
    answer = me.client.get(f"/studies/{study.pk}/spec.yaml")
    assert answer["Content-Disposition"].startswith("attachment")
    assert parse(answer.content).model_dump(mode="json") == study.spec


# ----------------------------------------------------------------------------------------------------- experiments


def test_an_experiment_shows_verdict_effects_canary_environment_and_all_numbers(me: Visitor) -> None:
    study = study_reports.ended_study(me.team)
    experiment = Experiment.objects.get(study=study, name="int8-dynamic-onnxruntime")
    said = text(me.page(f"/experiments/{experiment.pk}"))
    assert "is faster than fp32: 1.80× [1.75, 1.85]" in said
    assert "36 of 37 linear layers quantized" in said
    assert "AMD EPYC" in said
    assert "17.0 GB/s copy" in said
    assert "KL divergence, p99" in said
    assert "no GPU was used" in said
    assert "Attempt succeeded" in said
    assert "technique: int8-dynamic" in said


def test_a_failed_experiment_says_what_to_do_and_can_run_again(me: Visitor) -> None:
    study = study_reports.ended_study(me.team, failed=("fp32",), names=["fp32"])
    experiment = selectors.experiments(study)[0]
    html = me.page(f"/experiments/{experiment.pk}")
    assert "Raise resources.memory_mib" in html
    assert "\x1b" not in html
    assert "Run again" in html
    me.client.post(f"/experiments/{experiment.pk}/retry")
    experiment.refresh_from_db()
    assert experiment.status == "queued"
    assert "run again" in text(me.page(f"/experiments/{experiment.pk}"))


def test_cancel_takes_an_experiment_out_of_the_queue(me: Visitor) -> None:
    study = study_reports.waiting_study(me.team, names=["fp32"])
    experiment = selectors.experiments(study)[0]
    assert "fp32" in me.page("/queue")
    answer = me.client.post(f"/experiments/{experiment.pk}/cancel", {"to": "queue"})
    assert answer["Location"] == "/queue"
    experiment.refresh_from_db()
    assert experiment.status == "cancelled"


def write_log(experiment: Experiment, data: bytes) -> None:
    """Give the experiment's attempt this log."""
    attempt = Attempt.objects.get(experiment=experiment)
    path = Path(settings.LOG_ROOT) / "test" / f"{attempt.pk}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    Attempt.objects.filter(pk=attempt.pk).update(log=f"test/{attempt.pk}.log")


def test_a_log_of_200_000_lines_neither_fills_nor_locks_the_page(me: Visitor) -> None:
    study = study_reports.ended_study(me.team, names=["fp32"])
    experiment = selectors.experiments(study)[0]
    lines = "".join(f"line {n} of the log, with enough text to be a real one, pad pad pad\n" for n in range(200_000))
    write_log(experiment, lines.encode())
    answer = me.client.get(f"/experiments/{experiment.pk}")
    html = answer.content.decode()
    assert len(answer.content) < 300_000
    assert "line 199999 of" in html
    assert "line 1000 of" not in html
    earlier = re.search(r'hx-get="(/experiments/\d+/log\?before=\d+)', html)
    assert earlier is not None
    piece = me.page(earlier[1])
    last_before = int(re.findall(r"line (\d+) of", piece)[-1])
    first_shown = int(re.findall(r"line (\d+) of", html)[0])
    assert last_before == first_shown - 1  # no line is lost or shown twice between pieces
    found = text(me.page(f"/experiments/{experiment.pk}/log", q="LINE 123456 of"))
    assert "123457 line 123456 of" in found
    whole = me.client.get(f"/experiments/{experiment.pk}/log.txt")
    assert whole["Content-Disposition"].startswith("attachment")
    assert b"".join(whole.streaming_content) == lines.encode()  # type: ignore[attr-defined]


def test_progress_bars_colours_bad_bytes_and_endless_lines_are_shown_safely(me: Visitor) -> None:
    study = study_reports.ended_study(me.team, names=["fp32"])
    experiment = selectors.experiments(study)[0]
    bar = "".join(f"\r{n / 100:.0f}% done" for n in range(10_001))
    write_log(experiment, b"\x1b[31mred\x1b[0m <script>alert(1)</script>\n" + bar.encode() + b"\nbad \xff\xfe bytes\n")
    html = me.page(f"/experiments/{experiment.pk}")
    log = html.split('id="log"')[1].split("</pre>")[0]
    assert "red &lt;script&gt;" in log
    assert log.count("% done") == 1
    assert "100% done" in log
    assert "\x1b" not in log
    write_log(experiment, b"x" * 5_000_000)
    answer = me.client.get(f"/experiments/{experiment.pk}")
    assert len(answer.content) < 300_000
    assert "more characters" in answer.content.decode()


def test_the_log_of_a_running_experiment_is_sent_from_where_the_page_is(me: Visitor) -> None:
    factories.worker()
    study = study_reports.waiting_study(me.team, names=["fp32"])
    experiment = selectors.experiments(study)[0]
    study_reports.run(experiment, until="running")
    write_log(experiment, b"first\n")
    html = me.page(f"/experiments/{experiment.pk}")
    poll = re.search(r'hx-get="(/experiments/\d+/live[^"]*)"', html)
    assert poll is not None
    write_log(experiment, b"first\nsecond\n")
    fresh = me.page(poll[1].replace("&amp;", "&"))
    assert "second" in fresh
    assert "first" not in fresh


# ---------------------------------------------------------------------------------------------- teams, roles, text


def test_another_teams_objects_are_absent_everywhere(me: Visitor) -> None:
    study = study_reports.ended_study(factories.team(), names=["fp32", "fp16"])
    experiment = selectors.experiments(study)[0]
    for path in ("", "/live", "/results", "/pareto", "/spec.yaml"):
        assert "There is nothing here" in me.page(f"/studies/{study.pk}{path}", status=404)
    for path in ("", "/live", "/log", "/log.txt"):
        me.page(f"/experiments/{experiment.pk}{path}", status=404)
    for path in (
        f"/studies/{study.pk}/cancel",
        f"/experiments/{experiment.pk}/cancel",
        f"/experiments/{experiment.pk}/retry",
    ):
        assert me.client.post(path).status_code == 404
    me.page("/studies/new", status=404, **{"from": str(study.pk)})
    assert study.name not in me.page("/")
    assert study.name not in me.page("/studies")


def test_the_queue_hides_the_names_of_other_teams(me: Visitor) -> None:
    factories.worker()
    study_reports.waiting_study(factories.team(), name="secret study", names=["fp32", "fp16"])
    said = me.page("/queue")
    assert "another team" in said
    assert "secret study" not in said


def test_a_viewer_may_look_but_not_change_anything() -> None:
    looking = visitor(Role.VIEWER)
    study = study_reports.ended_study(looking.team, names=["fp32"])
    looking.page(f"/studies/{study.pk}")
    experiment = selectors.experiments(study)[0]
    for path in (f"/studies/{study.pk}/cancel", f"/experiments/{experiment.pk}/retry"):
        answer = looking.client.post(path)
        assert answer.status_code == 403
        assert "You may not do this" in answer.content.decode()


def test_changes_need_the_csrf_token(me: Visitor) -> None:
    study = study_reports.waiting_study(me.team, names=["fp32"])
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(me.user)
    answer = strict.post(f"/studies/{study.pk}/cancel")
    assert answer.status_code == 403
    assert "too old to be accepted" in answer.content.decode()


MARKUP = "<img src=x onerror=alert(1)>\"'&lt;"


def test_markup_in_names_stays_text_on_every_page_and_in_every_chart(me: Visitor) -> None:
    """FC-105: names of studies, experiments and models are never markup, chart labels included."""
    factories.worker()
    study = factories.study(
        me.team,
        (MARKUP, f"b {MARKUP}"),
        name=MARKUP,
        model={"source": "hub", "name": MARKUP},
        tags=[MARKUP[:50]],
    )
    for experiment in selectors.experiments(study):
        attempt = factories.running(experiment)
        if experiment.index:
            failure = Failure(kind=FailureKind.BAD_MODEL, message=MARKUP, fix=MARKUP, log_tail=(MARKUP,))
            ended = factories.report(experiment, status="failed", failure=failure)
        else:
            ended = factories.report(experiment)
        services.report_record(attempt_id=attempt.pk, number=attempt.number, report=ended)
    pages = [f"/experiments/{e.pk}" for e in selectors.experiments(study)]
    for path in ["/", "/studies", f"/studies/{study.pk}", "/queue", f"/studies/new?from={study.pk}", *pages]:
        html = me.page(path)
        assert "<img" not in html, path
        assert "onerror=alert(1)>" not in html, path
    study = study_reports.ended_study(me.team, names=["fp32", "fp16"])
    Experiment.objects.filter(study=study)
    figure = me.client.get(f"/studies/{study.pk}/pareto").json()
    assert "<img" not in str(figure)


def test_every_page_obeys_the_strict_policy(me: Visitor) -> None:
    """No inline styles, no inline handlers; every script carries this answer's nonce."""
    study = study_reports.ended_study(me.team, failed=("fp16",))
    experiment = selectors.experiments(study)[0]
    for path in (*PAGES, f"/studies/{study.pk}", f"/experiments/{experiment.pk}"):
        answer = me.client.get(path)
        html = answer.content.decode()
        policy = answer["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert not re.search(r"<[^>]+\sstyle=", html), path
        assert not re.search(r"<[^>]+\son[a-z]+=", html), path
        nonce = re.search(r"'nonce-([^']+)'", policy)
        for tag in re.findall(r"<(?:script|style)\b[^>]*>", html):
            ours = 'src="/static/' in tag or (nonce and f'nonce="{nonce[1]}"' in tag)
            assert ours or 'type="application/json"' in tag, (path, tag)
        assert "//cdn" not in html


def test_every_field_has_a_label_and_every_page_one_heading(me: Visitor) -> None:
    study = study_reports.ended_study(me.team)
    for path in (*PAGES, f"/studies/{study.pk}"):
        html = me.page(path)
        labels = set(re.findall(r'<label[^>]*\bfor="([^"]+)"', html))
        wrapped = set(re.findall(r"<label[^>]*>(?:(?!</label>).)*?<(?:input|select|textarea)[^>]*?>", html, re.S))
        for tag in re.findall(r"<(?:input|select|textarea)\b[^>]*>", html):
            if 'type="hidden"' in tag:
                continue
            own = re.search(r'\bid="([^"]+)"', tag)
            inside = any(tag in outer for outer in wrapped)
            assert inside or "aria-label" in tag or (own and own[1] in labels), (path, tag)
        assert html.count("<h1") == 1, path


def test_what_is_not_there_is_a_page_of_ours(me: Visitor) -> None:
    assert "There is nothing here" in me.page("/nowhere", status=404)
    assert "There is nothing here" in me.page("/studies/99999", status=404)
    assert Study.objects.count() == 0
