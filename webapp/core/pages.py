"""What every page does: it knows the team, and a service's refusal becomes the right page instead of a stack trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render

from webapp.accounts.models import Team
from webapp.accounts.selectors import current_team
from webapp.core.errors import DomainError, Forbidden, NotFound

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, Team, P], HttpResponseBase]


def page(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Calls ``view(request, team, ...)`` for the signed-in person's team.

    What is not the team's is 404, what the person may not do is 403, and any other refusal is a page with its
    sentence and its status.
    """

    @wraps(view)
    def inner(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        try:
            return view(request, current_team(request), *args, **kwargs)
        except NotFound as error:
            raise Http404(error.message) from error
        except Forbidden as error:
            raise PermissionDenied(error.message) from error
        except DomainError as error:
            return refusal(request, error)

    return inner


def refusal(request: HttpRequest, error: DomainError) -> HttpResponse:
    """A page that says what can't be done and why."""
    return render(request, "core/refusal.html", {"error": error}, status=error.status)
