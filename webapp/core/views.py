"""Health for load balancers and supervisors."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from webapp.runs import queue


@login_not_required
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200 while this process answers."""
    return JsonResponse({"status": "ok"})


@login_not_required
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """200 if database and broker answer, else 503 with which one doesn't."""
    checks = {"database": database_answers(), "broker": queue.broker_answers()}
    ready = all(checks.values())
    return JsonResponse({"status": "ok" if ready else "unavailable", "checks": checks}, status=200 if ready else 503)


def database_answers() -> bool:
    """True if a trivial query succeeds."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return False
    return True
