"""Writes of people, teams and keys."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from webapp.accounts import selectors
from webapp.accounts.models import ApiKey, AuditEntry, Membership, Role, Team, User
from webapp.core.clock import database_now
from webapp.core.errors import Forbidden, Invalid, NotFound, Unauthenticated

KEY_PREFIX = "sy_"

#: A key's last use is recorded at most this often, so that reads stay reads.
LAST_USED_EVERY = timedelta(seconds=60)


@dataclass(frozen=True)
class FirstSignIn:
    """What the first start shows once; only hashes of it are stored."""

    team: Team
    username: str
    password: str
    api_key: str


def bootstrap(*, team_name: str = "Team", username: str = "admin", password: str | None = None) -> FirstSignIn | None:
    """Make the first team, its admin and an API key, or return None if there already is a person.

    Two processes may start at once: the second finds the first one's rows.
    """
    with transaction.atomic():
        team, made = Team.objects.get_or_create(slug="team", defaults={"name": team_name})
        if not made or User.objects.exists():
            return None
        password = password or secrets.token_urlsafe(12)
        user = User.objects.create_user(username=username, password=password, is_staff=True, is_superuser=True)
        Membership.objects.create(team=team, user=user, role=Role.ADMIN)
        _, raw = api_key_create(team=team, user=user, name="first key", role=Role.ADMIN)
        audit(team=team, actor="bootstrap", action="team.create", target=f"team {team.slug}")
        return FirstSignIn(team=team, username=username, password=password, api_key=raw)


def api_key_create(
    *, team: Team, user: User, name: str, role: Role = Role.SUBMITTER, expires_at: datetime | None = None
) -> tuple[ApiKey, str]:
    """A new key and its text, which is shown once and stored only as a hash.

    Raises:
        Forbidden: the person may not do what the key may.
        Invalid: no name, or an expiry in the past.
    """
    require(team, user, role)
    name = name.strip()
    if not name or len(name) > 100:
        raise Invalid("give the key a name of at most 100 characters")
    if expires_at is not None and expires_at <= database_now():
        raise Invalid("the key would already be expired; choose a later time")
    raw = KEY_PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        key = ApiKey.objects.create(
            team=team,
            name=name,
            prefix=raw[:10],
            sha256=_hash(raw),
            role=role,
            created_by=user,
            expires_at=expires_at,
        )
        audit(team=team, actor=user.username, action="key.create", target=f"key {key.prefix}")
    return key, raw


def api_key_authenticate(raw: str) -> ApiKey:
    """The key of this text, with ``team`` and ``created_by`` loaded; valid from and until the very next request.

    Raises:
        Unauthenticated: unknown, expired, revoked, or its maker left the team.
    """
    refused = Unauthenticated("the API key is missing, unknown, expired or revoked")
    if not raw.startswith(KEY_PREFIX) or len(raw) > 200:
        raise refused
    key = ApiKey.objects.select_related("team", "created_by").filter(sha256=_hash(raw)).first()
    if key is None or key.revoked_at is not None or key.created_by is None or not key.created_by.is_active:
        raise refused
    now = database_now()
    if key.expires_at is not None and key.expires_at <= now:
        raise refused
    makers_role = selectors.role(key.team, key.created_by)
    if makers_role is None:
        raise refused
    if not makers_role.includes(Role(key.role)):
        key.role = makers_role
    if key.last_used_at is None or now - key.last_used_at >= LAST_USED_EVERY:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
        key.last_used_at = now
    return key


def api_key_revoke(*, team: Team, key_id: int, user: User) -> ApiKey:
    """Revoke a key; idempotent.

    Raises:
        NotFound: there is no such key in this team.
    """
    require(team, user, Role.SUBMITTER)
    with transaction.atomic():
        key = ApiKey.objects.filter(team=team, pk=key_id).first()
        if key is None:
            raise NotFound("there is no such key")
        if key.created_by_id != user.pk:
            require(team, user, Role.ADMIN)
        if key.revoked_at is None:
            key.revoked_at = database_now()
            key.save(update_fields=["revoked_at"])
            audit(team=team, actor=user.username, action="key.revoke", target=f"key {key.prefix}")
    return key


def require(team: Team, user: User, role: Role) -> None:
    """Return if the person's role in the team includes ``role``.

    Raises:
        Forbidden: it does not; the message names the role that is needed.
    """
    mine = selectors.role(team, user)
    if mine is None:
        raise Forbidden("you are not a member of this team")
    if not mine.includes(role):
        raise Forbidden(f"this needs the role {role.value}; yours is {mine.value}")


def audit(*, team: Team, actor: str, action: str, target: str, detail: dict[str, Any] | None = None) -> None:
    """Record who did what."""
    AuditEntry.objects.create(team=team, actor=actor, action=action, target=target, detail=detail or {})


def _hash(raw: str) -> str:
    # A key has 256 random bits, so a fast hash is enough: there is nothing to guess.
    return hashlib.sha256(raw.encode()).hexdigest()
