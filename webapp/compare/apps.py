"""Application configuration."""

from django.apps import AppConfig


class CompareConfig(AppConfig):
    """The ``compare`` room."""

    name = "webapp.compare"
    label = "compare"
