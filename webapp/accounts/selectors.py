"""Reads of people, teams and keys."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import HttpRequest

from webapp.accounts.models import ApiKey, Membership, Role, Team, User
from webapp.core.errors import Forbidden

#: Session key that holds the slug of the team a person chose.
SESSION_TEAM = "team"


def current_membership(request: HttpRequest) -> Membership | None:
    """The signed-in person's membership in the team they chose, else in their first one; read once a request."""
    if not hasattr(request, "_steelyard_membership"):
        found = None
        if request.user.is_authenticated:
            mine = Membership.objects.filter(user=request.user).select_related("team").order_by("created_at", "id")
            chosen = request.session.get(SESSION_TEAM)
            every = list(mine)
            found = next((m for m in every if m.team.slug == chosen), every[0] if every else None)
        request._steelyard_membership = found  # type: ignore[attr-defined]
    membership: Membership | None = request._steelyard_membership  # type: ignore[attr-defined]
    return membership


def current_team(request: HttpRequest) -> Team:
    """The team whose objects this request may see.

    Raises:
        Forbidden: the person belongs to no team.
    """
    membership = current_membership(request)
    if membership is None:
        raise Forbidden("you belong to no team yet; ask an admin to add you")
    return membership.team


def role(team: Team, user: User) -> Role | None:
    """The person's role in the team, or None."""
    value = Membership.objects.filter(team=team, user=user).values_list("role", flat=True).first()
    return Role(value) if value else None


def members(team: Team) -> QuerySet[Membership]:
    """The team's people."""
    return Membership.objects.filter(team=team).select_related("user").order_by("user__username")


def api_keys(team: Team) -> QuerySet[ApiKey]:
    """The team's keys, newest first."""
    return ApiKey.objects.filter(team=team).select_related("created_by").order_by("-created_at")
