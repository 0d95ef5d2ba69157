"""Who may call: keys of a team, browser sessions with their CSRF token, and nobody else's objects."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from tests.webapp.api.conftest import SPEC, Account, problem, submit
from webapp.accounts.models import ApiKey, Membership, User
from webapp.accounts.services import api_key_revoke
from webapp.core.clock import database_now

URL = "/api/v1/studies"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer sy_wrong", "Bearer nonsense", "Basic YTpi"])
def test_without_a_good_key_the_answer_is_401(ours: Account, header: str | None) -> None:
    client = Client(raise_request_exception=False)
    headers = {} if header is None else {"Authorization": header}
    response = client.get(URL, headers=headers)
    problem(response, 401)
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_a_key_in_the_address_is_not_a_key(ours: Account) -> None:
    problem(Client().get(URL, {"key": ours.raw}), 401)


def test_an_expired_key_is_refused(ours: Account) -> None:
    """FC-051."""
    ApiKey.objects.filter(pk=ours.key.pk).update(expires_at=database_now() - timedelta(seconds=1))
    problem(ours.client().get(URL), 401)


def test_a_revoked_key_is_refused_from_the_next_request_on(ours: Account) -> None:
    """FC-051."""
    client = ours.client()
    assert client.get(URL).status_code == 200
    api_key_revoke(team=ours.team, key_id=ours.key.pk, user=ours.user)
    problem(client.get(URL), 401)


def test_the_key_of_a_person_who_left_is_refused(ours: Account) -> None:
    """FC-051."""
    Membership.objects.filter(user=ours.user).delete()
    problem(ours.client().get(URL), 401)


def test_the_key_of_a_deactivated_person_is_refused(ours: Account) -> None:
    User.objects.filter(pk=ours.user.pk).update(is_active=False)
    problem(ours.client().get(URL), 401)


def test_the_last_use_is_recorded(ours: Account) -> None:
    ours.client().get(URL)
    assert ApiKey.objects.get(pk=ours.key.pk).last_used_at is not None


def test_a_key_needs_no_csrf_token(ours: Account) -> None:
    client = Client(enforce_csrf_checks=True, headers={"Authorization": f"Bearer {ours.raw}"})
    assert client.post(URL, SPEC, content_type="application/json").status_code == 202


def test_a_session_reads_freely_and_writes_with_its_csrf_token(ours: Account) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(ours.user)
    assert client.get(URL).status_code == 200
    assert "CSRF" in problem(client.post(URL, SPEC, content_type="application/json"), 403)["message"]
    token = "a" * 32
    client.cookies["csrftoken"] = token
    response = client.post(URL, SPEC, content_type="application/json", headers={"X-CSRFToken": token})
    assert response.status_code == 202
    assert response.json()["created_by"] == ours.user.username


def test_a_person_without_a_team_is_told_so(db: None) -> None:
    client = Client()
    client.force_login(User.objects.create_user(username="newcomer"))
    assert "no team" in problem(client.get(URL), 403)["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "studies/{study}"),
        ("GET", "studies/{study}/results"),
        ("GET", "studies/{study}/results?format=csv"),
        ("POST", "studies/{study}/cancel"),
        ("GET", "experiments/{experiment}"),
        ("GET", "experiments/{experiment}/events"),
        ("GET", "experiments/{experiment}/events?wait=20"),
        ("GET", "experiments/{experiment}/logs"),
        ("POST", "experiments/{experiment}/cancel"),
        ("POST", "experiments/{experiment}/retry"),
    ],
)
def test_another_teams_objects_are_as_good_as_absent(ours: Account, theirs: Account, method: str, path: str) -> None:
    study = submit(theirs.client(), SPEC)
    address = "/api/v1/" + path.format(study=study["id"], experiment=study["experiments"][0]["id"])
    absent = "/api/v1/" + path.format(study=10**6, experiment=10**6)
    error = problem(ours.client().generic(method, address), 404)
    assert error == problem(ours.client().generic(method, absent), 404)
    after = theirs.client().get(f"/api/v1/studies/{study['id']}").json()
    assert after["experiments"][0]["status"] == "queued"


def test_a_list_holds_the_own_teams_studies_only(ours: Account, theirs: Account) -> None:
    submit(theirs.client(), SPEC)
    mine = submit(ours.client(), SPEC)
    assert [row["id"] for row in ours.client().get(URL).json()["items"]] == [mine["id"]]


@pytest.mark.parametrize("path", ["", "nothing", "studies/", "studies/x", "studies/1/gate", "studies/1/../2"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_address_is_a_404_in_the_one_shape(ours: Account, method: str, path: str) -> None:
    response = Client(enforce_csrf_checks=True, headers={"Authorization": f"Bearer {ours.raw}"}).generic(
        method, f"/api/v1/{path}"
    )
    if path == "studies/x":
        assert problem(response, 405 if method == "POST" else 422)
    else:
        problem(response, 404)


def test_a_wrong_method_says_which_are_right(api: Client) -> None:
    response = api.delete(URL)
    problem(response, 405)
    assert set(response["Allow"].split(", ")) == {"GET", "POST"}


@pytest.mark.parametrize("number", ["0", "-1", "9" * 30, "1.5"])
def test_a_number_that_can_be_no_object_is_an_answer_and_not_a_fault(api: Client, number: str) -> None:
    response = api.get(f"/api/v1/studies/{number}")
    assert response.status_code in (404, 422)
    problem(response, response.status_code)
