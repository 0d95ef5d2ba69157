"""Addresses of studies, experiments, queue and catalogue."""

from __future__ import annotations

from django.urls import path

from webapp.runs import views

app_name = "runs"

urlpatterns = [
    path("", views.home, name="home"),
    path("studies", views.study_list, name="studies"),
    path("studies/new", views.study_new, name="study-new"),
    path("studies/preview", views.study_preview, name="study-preview"),
    path("studies/recipes", views.study_recipes, name="study-recipes"),
    path("studies/<int:study_id>", views.study_page, name="study"),
    path("studies/<int:study_id>/live", views.study_live, name="study-live"),
    path("studies/<int:study_id>/spec.yaml", views.study_spec, name="study-spec"),
    path("studies/<int:study_id>/cancel", views.study_cancel, name="study-cancel"),
    path("experiments/<int:experiment_id>", views.experiment_page, name="experiment"),
    path("experiments/<int:experiment_id>/live", views.experiment_live, name="experiment-live"),
    path("experiments/<int:experiment_id>/log", views.experiment_log, name="experiment-log"),
    path("experiments/<int:experiment_id>/log.txt", views.experiment_log_file, name="experiment-log-file"),
    path("experiments/<int:experiment_id>/cancel", views.experiment_cancel, name="experiment-cancel"),
    path("experiments/<int:experiment_id>/retry", views.experiment_retry, name="experiment-retry"),
    path("queue", views.queue_page, name="queue"),
    path("queue/table", views.queue_table, name="queue-table"),
    path("catalog", views.catalog_page, name="catalog"),
]
