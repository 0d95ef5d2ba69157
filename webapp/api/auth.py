"""Who calls: an API key of a team, or a person's browser session."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.middleware.csrf import CsrfViewMiddleware
from ninja.security import HttpBearer
from ninja.security.apikey import APIKeyCookie

from webapp.accounts import selectors, services
from webapp.accounts.models import Role, Team, User
from webapp.api.body import limit
from webapp.core.errors import Forbidden


@dataclass(frozen=True)
class Caller:
    """On whose behalf a call is made.

    Attributes:
        team: the only team whose objects are seen.
        user: the person; for a key, the one who made it.
        role: what the call may do.
        name: what the history shows as actor.
    """

    team: Team
    user: User
    role: Role
    name: str

    def require(self, role: Role) -> None:
        """Return if the caller's role includes ``role``.

        Raises:
            Forbidden: it does not.
        """
        if not self.role.includes(role):
            raise Forbidden(f"this needs the role {role.value}; this caller's is {self.role.value}")


class _Csrf(CsrfViewMiddleware):
    """Django's own check, whose refusal is a reason instead of a page."""

    def _reject(self, request: HttpRequest, reason: str) -> HttpResponseForbidden:
        return HttpResponseForbidden(reason)

    @classmethod
    def refusal(cls, request: HttpRequest) -> str | None:
        """Why the request's CSRF token is not accepted, or None."""
        check = cls(lambda request: HttpResponse())
        check.process_request(request)
        request.csrf_processing_done = False  # type: ignore[attr-defined]
        refused = check.process_view(request, lambda request: HttpResponse(), (), {})
        return refused.content.decode() if refused is not None else None


class ApiKey(HttpBearer):
    """A key of a team as ``Authorization: Bearer sy_...``; valid until the very request after its end."""

    openapi_description = "API key of a team."

    def __call__(self, request: HttpRequest) -> Caller | None:
        """The caller; None without a bearer header, so that the session may answer instead."""
        limit(request)
        caller: Caller | None = super().__call__(request)
        return caller

    def authenticate(self, request: HttpRequest, token: str) -> Caller:
        """The key's team, acting as the key.

        Raises:
            Unauthenticated: unknown, expired or revoked.
        """
        key = services.api_key_authenticate(token.strip())
        assert key.created_by is not None
        return Caller(team=key.team, user=key.created_by, role=Role(key.role), name=f"key {key.prefix}")


class Session(APIKeyCookie):
    """A signed-in person's session cookie; what changes something needs the CSRF token as well."""

    param_name = "sessionid"
    openapi_description = "Session of the web pages; send X-CSRFToken with everything but GET."

    def __call__(self, request: HttpRequest) -> Caller | None:
        """The caller, or None without a session."""
        user = request.user
        if not isinstance(user, User) or not user.is_authenticated:
            return None
        if reason := _Csrf.refusal(request):
            raise Forbidden(f"{reason.rstrip('.')}; send the CSRF token as X-CSRFToken")
        return self.authenticate(request, None)

    def authenticate(self, request: HttpRequest, key: str | None) -> Caller:
        """The person in the team they chose.

        Raises:
            Forbidden: a member of no team.
        """
        membership = selectors.current_membership(request)
        if membership is None:
            raise Forbidden("you belong to no team yet; ask an admin to add you")
        user = request.user
        assert isinstance(user, User)
        return Caller(team=membership.team, user=user, role=Role(membership.role), name=user.username)


def caller(request: HttpRequest) -> Caller:
    """The caller of an authenticated operation."""
    found: Caller = request.auth  # type: ignore[attr-defined]
    return found
