"""First start, keys and roles."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests import factories
from tests.webapp.threads import at_once
from webapp.accounts import selectors, services
from webapp.accounts.models import ApiKey, AuditEntry, Membership, Role, Team, User
from webapp.accounts.services import FirstSignIn
from webapp.core.clock import database_now
from webapp.core.errors import Forbidden, Invalid, NotFound, Unauthenticated

pytestmark = pytest.mark.django_db


def test_the_first_start_makes_a_team_an_admin_and_a_key_and_shows_them_once() -> None:
    first = services.bootstrap()
    assert first is not None
    user = User.objects.get()
    assert user.check_password(first.password)
    assert selectors.role(first.team, user) is Role.ADMIN
    assert services.api_key_authenticate(first.api_key).team == first.team
    assert first.api_key not in str(ApiKey.objects.values())
    assert services.bootstrap() is None


@pytest.mark.django_db(transaction=True)
def test_two_first_starts_together_make_one_team() -> None:
    results = at_once(services.bootstrap, threads=4)
    assert sum(isinstance(result, FirstSignIn) for result in results) == 1
    assert sum(result is None for result in results) == 3
    assert (Team.objects.count(), User.objects.count(), ApiKey.objects.count()) == (1, 1, 1)


def test_a_key_ends_with_its_expiry_its_revocation_or_its_makers_membership() -> None:
    """FC-051: from the next request on."""
    team = factories.team()
    maker = factories.user(team)
    key, raw = services.api_key_create(team=team, user=maker, name="ci")
    assert services.api_key_authenticate(raw).pk == key.pk
    assert ApiKey.objects.get().last_used_at is not None

    ApiKey.objects.update(expires_at=database_now() - timedelta(seconds=1))
    with pytest.raises(Unauthenticated):
        services.api_key_authenticate(raw)
    ApiKey.objects.update(expires_at=None)

    Membership.objects.filter(user=maker).delete()
    with pytest.raises(Unauthenticated):
        services.api_key_authenticate(raw)
    Membership.objects.create(team=team, user=maker, role=Role.SUBMITTER)

    services.api_key_revoke(team=team, key_id=key.pk, user=maker)
    services.api_key_revoke(team=team, key_id=key.pk, user=maker)
    with pytest.raises(Unauthenticated):
        services.api_key_authenticate(raw)
    assert list(AuditEntry.objects.values_list("action", flat=True)) == ["key.create", "key.revoke"]


@pytest.mark.parametrize("raw", ["", "sy_", "sy_wrong", "Bearer", "sy_" + "x" * 10_000, "\0"])
def test_a_wrong_key_is_refused(raw: str) -> None:
    with pytest.raises(Unauthenticated):
        services.api_key_authenticate(raw)


def test_a_key_never_may_do_more_than_its_maker() -> None:
    team = factories.team()
    maker = factories.user(team, Role.MAINTAINER)
    with pytest.raises(Forbidden, match="admin"):
        services.api_key_create(team=team, user=maker, name="too much", role=Role.ADMIN)
    _, raw = services.api_key_create(team=team, user=maker, name="ci", role=Role.MAINTAINER)
    Membership.objects.update(role=Role.VIEWER)
    assert services.api_key_authenticate(raw).role == Role.VIEWER


def test_a_key_needs_a_name_and_a_future() -> None:
    team = factories.team()
    maker = factories.user(team)
    with pytest.raises(Invalid):
        services.api_key_create(team=team, user=maker, name="  ")
    with pytest.raises(Invalid):
        services.api_key_create(team=team, user=maker, name="ci", expires_at=database_now())


def test_only_an_admin_revokes_anothers_key_and_never_another_teams() -> None:
    team = factories.team()
    key, _ = services.api_key_create(team=team, user=factories.user(team), name="ci")
    with pytest.raises(Forbidden):
        services.api_key_revoke(team=team, key_id=key.pk, user=factories.user(team))
    elsewhere = factories.team()
    with pytest.raises(NotFound):
        services.api_key_revoke(team=elsewhere, key_id=key.pk, user=factories.user(elsewhere, Role.ADMIN))
    services.api_key_revoke(team=team, key_id=key.pk, user=factories.user(team, Role.ADMIN))
