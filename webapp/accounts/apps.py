"""Application configuration."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """The ``accounts`` room."""

    name = "webapp.accounts"
    label = "accounts"
