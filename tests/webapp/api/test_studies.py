"""Lists, states, results, cancel and retry."""

from __future__ import annotations

import copy
import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from experiments.records import Interval, Measurement, StudyReport
from tests.webapp.api.conftest import SPEC, Account, problem, submit
from webapp.runs.models import Study

URL = "/api/v1/studies"
HALF = Measurement(
    metric="latency_p50_ms",
    value=-0.5,
    unit="ms",
    at={"batch_size": 1},
    interval=Interval(low=-0.75, high=-0.25, method="test"),
    samples=(1.0, 2.0),
    n=2,
)
MISSING = Measurement(metric="latency_p99_ms", value=None, unit="ms", reason="insufficient (661 of 662)")


def spec_of(name: str, *experiments: str) -> dict[str, Any]:
    return {**SPEC, "name": name, "baseline": experiments[0], "experiments": [{"name": e} for e in experiments]}


def queries(client: Client, path: str) -> int:
    client.get(path)  # the first call may load what is kept
    with CaptureQueriesContext(connection) as seen:
        assert client.get(path).status_code == 200
    return len(seen)


# ------------------------------------------------------------------------------------------------- lists


def test_pages_are_newest_first_and_lead_on_to_the_end(api: Client) -> None:
    made = [submit(api, spec_of(f"s{n}", "fp32"))["id"] for n in range(5)]
    seen, cursor = [], None
    for _ in range(3):
        page = api.get(URL, {"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [row["id"] for row in page["items"]]
        cursor = page["next_cursor"]
    assert seen == made[::-1]
    assert cursor is None


def test_filters_narrow_the_list(api: Client) -> None:
    trigger = {"repository": "org/repo", "branch": "main"}
    first = submit(api, {**spec_of("alpha", "fp32"), "tags": ["nightly"], "trigger": trigger})["id"]
    second = submit(api, spec_of("beta", "fp32"))["id"]
    api.post(f"{URL}/{second}/cancel")

    def ids(**wanted: str) -> list[int]:
        return [row["id"] for row in api.get(URL, wanted).json()["items"]]

    assert ids(q="ALPH") == ids(tag="nightly") == ids(repository="org/repo", branch="main") == [first]
    assert ids(status="cancelled") == [second]
    assert ids(status="queued") == [first]
    assert ids(via="web") == []


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"status": "done"}, "status"),
        ({"via": "mail"}, "via"),
        ({"q": "x" * 201}, "q"),
    ],
)
def test_a_wrong_parameter_is_named(api: Client, wanted: dict[str, str], path: str) -> None:
    assert [f["path"] for f in problem(api.get(URL, wanted), 422)["fields"]] == [path]


@pytest.mark.parametrize("cursor", ["x", "-1", "٣", "1e3"])
def test_a_made_up_cursor_is_refused(api: Client, cursor: str) -> None:
    problem(api.get(URL, {"cursor": cursor}), 422)


def test_a_list_takes_the_same_number_of_queries_however_long_it_is(api: Client) -> None:
    submit(api, spec_of("one", "fp32"))
    few = queries(api, URL)
    for n in range(12):
        submit(api, spec_of(f"s{n}", "fp32", "b", "c"))
    assert queries(api, URL) == few


def test_a_study_takes_the_same_number_of_queries_however_many_experiments_it_has(
    api: Client, finish: Callable[..., None]
) -> None:
    small = submit(api, spec_of("small", "fp32"))
    large = submit(api, spec_of("large", *(f"e{n}" for n in range(25))))
    finish(small["experiments"][0]["id"], HALF)
    for experiment in large["experiments"][:4]:
        finish(experiment["id"], HALF)
    for path in ("", "/results", "/results?format=csv", "/results?format=md"):
        assert queries(api, f"{URL}/{large['id']}{path}") == queries(api, f"{URL}/{small['id']}{path}"), path


# ------------------------------------------------------------------------------------------------- results


def test_results_are_the_engines_own_report_with_every_sample(api: Client, finish: Callable[..., None]) -> None:
    study = submit(api, SPEC)
    finish(study["experiments"][0]["id"], HALF, MISSING)
    response = api.get(study["links"]["results"])
    report = StudyReport.model_validate_json(response.content)
    assert report.spec == Study.objects.get(pk=study["id"]).spec
    assert [e.experiment for e in report.experiments] == ["fp32"]
    assert report.experiments[0].measurements == (HALF, MISSING)
    assert b"NaN" not in response.content


def test_results_of_a_study_that_has_none_yet_are_empty_and_well_formed(api: Client) -> None:
    study = submit(api, SPEC)
    for format in ("json", "csv", "md"):
        response = api.get(study["links"]["results"], {"format": format})
        assert response.status_code == 200
    problem(api.get(study["links"]["results"], {"format": "xml"}), 422)


def test_csv_can_be_opened_in_a_spreadsheet_without_running_anything(api: Client, finish: Callable[..., None]) -> None:
    """FC-105."""
    names = ['=HYPERLINK("http://x","y")', "@SUM(1)", "-1+cmd", "+1", "<img src=x onerror=alert(1)>"]
    study = submit(api, spec_of("=1+1", *names))
    for experiment in study["experiments"]:
        finish(experiment["id"], HALF)
    response = api.get(study["links"]["results"], {"format": "csv"})
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"] == f'attachment; filename="study-{study["id"]}.csv"'
    heading, *rows = csv.reader(io.StringIO(response.content.decode()))
    assert len(rows) == len(names)
    for row, name in zip(rows, names, strict=True):
        assert row[0] == (name if name.startswith("<") else f"'{name}")
        assert "-0.5" in row
        for cell in row:
            try:
                float(cell)
            except ValueError:
                assert cell[:1] not in tuple("=+-@\t\r")
    assert heading


def test_markdown_shows_markup_in_names_as_text(api: Client, finish: Callable[..., None]) -> None:
    study = submit(api, spec_of("<script>x</script>", "<img src=x onerror=alert(1)>", "a|b"))
    finish(study["experiments"][0]["id"], HALF)
    response = api.get(study["links"]["results"], {"format": "md"})
    assert response["Content-Type"] == "text/markdown; charset=utf-8"
    assert "<img" not in response.content.decode()
    assert "<script" not in response.content.decode()


# ------------------------------------------------------------------------------------------------- cancel, retry


def test_cancel_is_idempotent_and_leaves_ended_experiments_alone(api: Client, finish: Callable[..., None]) -> None:
    study = submit(api, SPEC)
    finish(study["experiments"][0]["id"], HALF)
    for _ in range(2):
        response = api.post(study["links"]["cancel"])
        assert response.status_code == 200
        assert [e["status"] for e in response.json()["experiments"]] == ["succeeded", "cancelled"]


def test_one_experiment_can_be_cancelled_and_run_again(api: Client) -> None:
    study = submit(api, SPEC)
    address = study["experiments"][1]["links"]["api"]
    assert api.post(f"{address}/cancel").json()["status"] == "cancelled"
    assert api.post(f"{address}/cancel").json()["status"] == "cancelled"
    assert api.post(f"{address}/retry").json()["status"] == "queued"
    assert api.post(f"{address}/retry").json()["status"] == "queued"
    assert api.get(study["experiments"][0]["links"]["api"]).json()["status"] == "queued"


def test_the_history_names_the_key_that_acted(api: Client, ours: Account) -> None:
    study = submit(api, SPEC)
    address = study["experiments"][0]["links"]["api"]
    api.post(f"{address}/cancel")
    events = api.get(f"{address}/events").json()["events"]
    assert events[-1]["data"]["to"] == "cancelled"
    assert events[-1]["actor"] == f"key {ours.key.prefix}"


def test_an_experiment_is_whole_but_light(api: Client, finish: Callable[..., None]) -> None:
    study = submit(api, SPEC)
    finish(study["experiments"][0]["id"], HALF, MISSING)
    body = api.get(study["experiments"][0]["links"]["api"]).json()
    assert body["study_id"] == study["id"]
    assert body["baseline"] == "fp32"
    assert body["spec"]["variant"]["name"] == "fp32"
    assert [attempt["status"] for attempt in body["attempts"]] == ["succeeded"]
    measured = {m["metric"]: m for m in body["report"]["measurements"]}
    assert measured["latency_p50_ms"]["interval"]["low"] == -0.75
    assert measured["latency_p50_ms"]["samples"] is None
    assert measured["latency_p99_ms"]["reason"] == MISSING.reason


# ------------------------------------------------------------------------------------------------- capabilities


def test_the_catalogue_is_the_engines(api: Client) -> None:
    from experiments import catalog

    body = api.get("/api/v1/catalog").json()
    described = json.loads(json.dumps(catalog.describe()))
    assert set(body) == set(described)
    for kind, rows in described.items():
        assert [row["name"] for row in body[kind]] == [row["name"] for row in rows]
        for mine, theirs in zip(body[kind], rows, strict=True):
            assert {name: mine[name] for name in theirs} == theirs


def test_workers_show_their_devices_and_what_is_busy(api: Client, begin: Callable[[int], Any]) -> None:
    study = submit(api, copy.deepcopy(SPEC))
    assert api.get("/api/v1/workers").json() == {"items": []}
    attempt = begin(study["experiments"][0]["id"])
    workers = api.get("/api/v1/workers").json()["items"]
    assert [(w["name"], w["alive"], [d["busy"] for d in w["devices"]]) for w in workers] == [
        (attempt.worker_name, True, [True])
    ]
