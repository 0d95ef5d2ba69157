"""Application configuration."""

from django.apps import AppConfig


class RunsConfig(AppConfig):
    """The ``runs`` room."""

    name = "webapp.runs"
    label = "runs"
