"""Application configuration."""

from django.apps import AppConfig


class CoreConfig(AppConfig):
    """The ``core`` room."""

    name = "webapp.core"
    label = "core"
