"""The comparison of a study, as a piece of its page and as data for its chart."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from webapp.accounts.models import Team
from webapp.compare import selectors
from webapp.core.pages import page
from webapp.runs import selectors as runs


def context(request: HttpRequest, team: Team, study_id: int) -> dict[str, Any]:
    """What the comparison's template needs, by the choices in the address."""
    study = runs.study(team, study_id)
    asked = request.GET.get("b", "")
    compared = selectors.comparison(
        runs.study_report(team, study_id),
        batch=int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else None,
        x=request.GET.get("x", ""),
        y=request.GET.get("y", ""),
    )
    ids = {e.name: e.pk for e in runs.experiments(study)}
    return {"study": study, "comparison": compared, "ids": ids}


@require_safe
@page
def results(request: HttpRequest, team: Team, study_id: int) -> HttpResponse:
    """The comparison alone, for a page that follows a run."""
    return render(request, "compare/comparison.html", context(request, team, study_id))


@require_safe
@page
def pareto(request: HttpRequest, team: Team, study_id: int) -> JsonResponse:
    """The chart of two other metrics: figure, sentence and table."""
    chart = context(request, team, study_id)["comparison"].pareto
    if chart is None:
        return JsonResponse({"error": "the study has no two metrics to draw"}, status=404)
    return JsonResponse(
        {
            "figure": chart.figure,
            "summary": chart.summary,
            "title": chart.title,
            "table": render_to_string("compare/chart_table.html", {"chart": chart}),
        }
    )
