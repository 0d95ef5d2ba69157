"""Makes the first team, admin and API key, and prints them once."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import BaseCommand

from webapp.accounts import services


class Command(BaseCommand):
    """``manage.py bootstrap``: does nothing if there already is a person."""

    help = "Make the first team, its admin and an API key; print the sign-in and the key once."

    def handle(self, *args: Any, **options: Any) -> None:
        """Make them or say that they exist."""
        first = services.bootstrap(password=os.environ.get("STEELYARD_ADMIN_PASSWORD") or None)
        if first is None:
            self.stdout.write("There already is a team; nothing to do.")
            return
        self.stdout.write(f"Sign in as {first.username} with the password {first.password}")
        self.stdout.write(f"API key (shown once): {first.api_key}")
