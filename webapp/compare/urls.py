"""Addresses of comparisons."""

from __future__ import annotations

from django.urls import path

from webapp.compare import views

app_name = "compare"

urlpatterns = [
    path("studies/<int:study_id>/results", views.results, name="results"),
    path("studies/<int:study_id>/pareto", views.pareto, name="pareto"),
]
