"""What every template knows about the person's team."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from webapp.accounts import selectors


def team(request: HttpRequest) -> dict[str, Any]:
    """``team`` and ``role`` of the signed-in person; absent for everyone else."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {}
    membership = selectors.current_membership(request)
    return {"team": membership.team, "role": membership.role} if membership else {}
