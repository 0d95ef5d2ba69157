"""Application configuration."""

from django.apps import AppConfig


class ApiConfig(AppConfig):
    """The ``api`` room."""

    name = "webapp.api"
    label = "api"
