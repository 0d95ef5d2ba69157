"""Application configuration."""

from django.apps import AppConfig


class CoreConfig(AppConfig):
    """The ``core`` room."""

    name = "webapp.core"
    label = "core"

    def ready(self) -> None:
        """Register the system checks."""
        from webapp.core import checks  # noqa: F401
