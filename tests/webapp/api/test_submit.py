"""POST studies: what is accepted, what is refused and how, and that a repeat is no second study."""

from __future__ import annotations

import copy
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml
from django.test import Client

from experiments.spec import parse
from tests import factories
from tests.webapp.api.conftest import SPEC, Account, account, problem, submit
from webapp.accounts.models import Role
from webapp.accounts.services import api_key_create
from webapp.api.throttle import TeamRate
from webapp.runs.models import Experiment, IdempotencyKey, Study

URL = "/api/v1/studies"


def post(client: Client, body: str | bytes, content_type: str = "application/json", **headers: str) -> Any:
    return client.generic("POST", URL, body, content_type=content_type, headers=headers)


# ------------------------------------------------------------------------------------------------- accepted


def test_a_study_is_accepted_with_its_links_and_the_preflight_of_each_experiment(api: Client) -> None:
    response = api.post(URL, SPEC, content_type="application/json")
    assert response.status_code == 202
    body = response.json()
    assert [e["name"] for e in body["experiments"]] == ["fp32", "int8-ort"]
    assert all(e["status"] == "queued" and e["failure"] is None for e in body["experiments"])
    assert all(isinstance(e["preflight"], dict) for e in body["experiments"])
    assert response["Location"] == body["links"]["api"] == f"http://testserver/api/v1/studies/{body['id']}"
    assert body["links"]["page"] == f"http://testserver/studies/{body['id']}"
    assert api.get(body["links"]["api"]).status_code == 200
    assert api.get(body["links"]["results"]).status_code == 200


def test_json_yaml_and_the_engine_itself_give_the_same_experiments(api: Client) -> None:
    spec = copy.deepcopy(SPEC)
    spec["experiments"].append(
        {"name": "both", "recipe": [{"technique": "fp16"}], "grid": {"recipe.0.technique": ["fp16", "bf16"]}}
    )
    expected = [point.sha256() for point in parse(spec).expand()]
    text = yaml.safe_dump(spec)
    answers = [post(api, json.dumps(spec))]
    answers += [post(api, text, kind) for kind in ("application/yaml", "text/yaml", "application/yaml; charset=utf-8")]
    for response in answers:
        assert response.status_code == 202, response.content
        rows = Experiment.objects.filter(study=response.json()["id"]).order_by("index")
        assert [row.spec_sha256 for row in rows] == expected
        assert [e["spec_sha256"] for e in response.json()["experiments"]] == expected


def test_the_page_and_the_api_make_the_same_experiments(api: Client, ours: Account) -> None:
    rest = submit(api, SPEC)
    browser = Client()
    browser.force_login(ours.user)
    response = browser.post("/studies/new", {"mode": "yaml", "yaml": yaml.safe_dump(SPEC), "token": "t"})
    assert response.status_code == 302, response.content
    page = Study.objects.latest("pk")
    assert page.pk != rest["id"]
    assert [row.spec_sha256 for row in page.experiments.order_by("index")] == [
        experiment["spec_sha256"] for experiment in rest["experiments"]
    ]


def test_the_trigger_is_kept_apart_from_the_spec(api: Client) -> None:
    trigger = {"repository": "org/repo", "commit": "abc123", "branch": "main", "pull_request": 7, "url": "https://x/7"}
    body = submit(api, {**SPEC, "trigger": trigger})
    assert body["trigger"] == trigger
    assert "trigger" not in Study.objects.get(pk=body["id"]).spec


def test_an_experiment_that_no_worker_can_run_ends_at_once_and_the_others_go_on(api: Client) -> None:
    factories.worker()
    spec = copy.deepcopy(SPEC)
    spec["experiments"].append({"name": "on-gpu", "resources": {"device": "cuda"}})
    states = {e["name"]: e for e in submit(api, spec)["experiments"]}
    assert states["on-gpu"]["status"] == "failed"
    assert states["on-gpu"]["failure"]["kind"] == "unsupported"
    assert states["fp32"]["status"] == states["int8-ort"]["status"] == "queued"
    assert states["fp32"]["failure"] is None


def test_names_with_markup_come_back_as_they_were_and_never_as_html(api: Client) -> None:
    name = "<img src=x onerror=alert(1)>"
    spec = {**SPEC, "name": name, "baseline": name, "experiments": [{"name": name}]}
    response = api.post(URL, spec, content_type="application/json")
    assert response.json()["name"] == response.json()["experiments"][0]["name"] == name
    assert response["Content-Type"].startswith("application/json")
    assert response["X-Content-Type-Options"] == "nosniff"


# ------------------------------------------------------------------------------------------------- refused


def test_every_problem_is_named_by_its_path_and_nothing_is_created(api: Client) -> None:
    spec = copy.deepcopy(SPEC)
    spec["colour"] = "red"
    spec["experiments"][1]["recipe"][0]["technique"] = "int8-dinamic"
    spec["workload"] = {"batch_sizes": [-1]}
    error = problem(api.post(URL, spec, content_type="application/json"), 422)
    fields = {f["path"]: f["message"] for f in error["fields"]}
    assert fields["experiments.1.recipe.0.technique"].endswith("did you mean 'int8-dynamic'?")
    assert fields["colour"].startswith("unknown field")
    assert "workload.batch_sizes.0" in fields
    assert not Study.objects.exists()


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{not json", "application/json", 422),
        (b"", "application/json", 400),
        (b"\xff\xfe", "application/json", 422),
        (b"[" * 100_000, "application/json", 422),
        (b"9" * 10_000, "application/json", 422),
        (b"a: &a [1]\nb: *a", "application/yaml", 422),
        (b"a: [", "application/yaml", 422),
        (b"a: !!python/object/apply:os.system [ls]", "application/yaml", 422),
        (b"a=b", "application/x-www-form-urlencoded", 400),
        (b"{}", "text/plain", 400),
        (b"[]", "application/json", 422),
        (b"hello", "application/yaml", 422),
        (b"# nothing", "application/yaml", 422),
        (b"{}", "application/json", 422),
        (b'{"name": NaN}', "application/json", 422),
        (b'{"name": "x", "name": "y"}', "application/json", 422),
        (b"name: x\nname: y", "application/yaml", 422),
    ],
)
def test_a_body_that_is_no_spec_is_refused_in_the_one_shape(api: Client, body: bytes, kind: str, status: int) -> None:
    problem(post(api, body, kind), status)
    assert not Study.objects.exists()


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"a: [" + b"1," * 490_000 + b"]", "application/yaml", 422),
        (b"a: [" + b"1," * 90_000 + b"]", "application/yaml", 422),
        (json.dumps({f"k{n}": 1 for n in range(70_000)}).encode(), "application/json", 422),
        (json.dumps({**SPEC, "workload": {"batch_sizes": [-1] * 200_000}}).encode(), "application/json", 422),
    ],
    ids=["a million tokens", "a long list", "unknown fields", "many problems"],
)
def test_a_hostile_body_of_less_than_1_mb_costs_neither_minutes_nor_a_huge_answer(
    api: Client, body: bytes, kind: str, status: int
) -> None:
    started = time.monotonic()
    response = post(api, body, kind)
    problem(response, status)
    assert time.monotonic() - started < 15
    assert len(response.content) < 50_000


@pytest.mark.parametrize("text", ["\\u0000", "\\ud800"])
def test_texts_that_no_database_can_hold_are_refused_by_path(api: Client, text: str) -> None:
    body = json.dumps({**SPEC, "labels": {"gpu": "@"}}).replace("@", text)
    error = problem(post(api, body), 422)
    assert [f["path"] for f in error["fields"]] == ["labels.gpu"]


def test_a_bad_trigger_is_named_by_its_path(api: Client) -> None:
    trigger = {"url": "javascript:alert(1)", "sha": "x", "pull_request": 0}
    error = problem(api.post(URL, {**SPEC, "trigger": trigger}, content_type="application/json"), 422)
    assert {f["path"] for f in error["fields"]} == {"trigger.url", "trigger.sha", "trigger.pull_request"}


def test_a_body_of_50_mb_is_refused_before_a_byte_of_it_is_read(ours: Account) -> None:
    class Unread:
        def read(self, *args: Any) -> bytes:
            raise AssertionError("the body was read")

        readline = read

    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": URL,
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": "50000000",
        "wsgi.input": Unread(),
        "HTTP_AUTHORIZATION": f"Bearer {ours.raw}",
    }
    for kind in ("application/json", "application/yaml", "multipart/form-data; boundary=x"):
        error = problem(Client().request(**{**environ, "CONTENT_TYPE": kind}), 413)
        assert "50,000,000 bytes; at most 1,000,000" in error["message"]


@pytest.mark.django_db(transaction=True)
def test_a_server_answers_413_while_the_client_has_not_sent_its_50_mb(live_server: Any) -> None:
    ours = account("ours")
    head = (
        f"POST {URL} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ours.raw}\r\n"
        "Content-Type: application/json\r\nContent-Length: 50000000\r\n\r\n{"
    )
    with socket.create_connection((live_server.thread.host, live_server.thread.port), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(4096)
    assert b" 413 " in answer.splitlines()[0]


def test_a_body_of_unknown_length_is_refused(ours: Account) -> None:
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": URL, "HTTP_TRANSFER_ENCODING": "chunked"}
    response = Client().request(**environ, CONTENT_LENGTH="", HTTP_AUTHORIZATION=f"Bearer {ours.raw}")
    assert "Content-Length" in problem(response, 400)["message"]


def test_a_viewer_may_look_but_not_submit(ours: Account) -> None:
    _, raw = api_key_create(team=ours.team, user=ours.user, name="dashboard", role=Role.VIEWER)
    viewer = ours.client(raw)
    assert viewer.get(URL).status_code == 200
    assert "submitter" in problem(viewer.post(URL, SPEC, content_type="application/json"), 403)["message"]


def test_a_local_path_outside_the_offered_folders_is_refused(api: Client) -> None:
    spec = {**SPEC, "model": {"source": "path", "path": "/etc"}}
    error = problem(api.post(URL, spec, content_type="application/json"), 422)
    assert [f["path"] for f in error["fields"]] == ["model.path"]


def test_a_script_in_a_loop_is_told_when_to_come_back() -> None:
    now = [0.0]
    rate = TeamRate(count=2, seconds=60.0, clock=lambda: now[0])
    assert [rate.take(1), rate.take(1), rate.take(2)] == [None, None, None]
    now[0] = 20.0
    assert rate.take(1) == 40
    now[0] = 60.0
    assert rate.take(1) is None


# ------------------------------------------------------------------------------------------------- repeated


def test_the_same_key_and_body_is_the_same_study_however_it_is_written(api: Client) -> None:
    first = submit(api, SPEC, **{"Idempotency-Key": "k1"})
    again = post(api, yaml.safe_dump(SPEC), "application/yaml", **{"Idempotency-Key": "k1"})
    assert again.status_code == 202
    assert again.json()["id"] == first["id"]
    assert Study.objects.count() == 1


def test_the_same_key_with_another_body_is_a_conflict(api: Client) -> None:
    submit(api, SPEC, **{"Idempotency-Key": "k1"})
    response = api.post(URL, {**SPEC, "seed": 1}, content_type="application/json", headers={"Idempotency-Key": "k1"})
    problem(response, 409)
    assert Study.objects.count() == 1


def test_keys_are_per_team(ours: Account, theirs: Account) -> None:
    mine = submit(ours.client(), SPEC, **{"Idempotency-Key": "k1"})
    other = submit(theirs.client(), SPEC, **{"Idempotency-Key": "k1"})
    assert mine["id"] != other["id"]


def test_a_key_without_text_or_too_long_is_refused(api: Client) -> None:
    for key in ("", "k" * 201):
        response = api.post(URL, SPEC, content_type="application/json", headers={"Idempotency-Key": key})
        problem(response, 422)
    assert not Study.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_twenty_requests_at_once_with_one_key_make_one_study(live_server: Any) -> None:
    """FC-049."""
    import urllib.request

    ours = account("ours")

    def call(_: int) -> tuple[int, int]:
        request = urllib.request.Request(
            f"{live_server.url}{URL}",
            data=json.dumps(SPEC).encode(),
            headers={
                "Authorization": f"Bearer {ours.raw}",
                "Content-Type": "application/json",
                "Idempotency-Key": "together",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)["id"]

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(call, range(20)))
    assert len(set(answers)) == 1
    assert answers[0][0] == 202
    assert Study.objects.count() == IdempotencyKey.objects.count() == 1
    assert Experiment.objects.count() == len(SPEC["experiments"])
