"""System checks of the installation, each with a hint that says what to type."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register


@register("steelyard")
def check_home(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """The state folder can be written, and its secret is nobody else's to read."""
    home = Path(settings.STEELYARD_HOME)
    if not os.access(home, os.W_OK | os.X_OK):
        return [
            Error(
                f"{home} can't be written",
                hint="Set STEELYARD_HOME to a folder of this user, or give this user the folder.",
                id="steelyard.E001",
            )
        ]
    key = home / "secret_key"
    if key.exists() and stat.S_IMODE(key.stat().st_mode) & 0o077:
        return [
            Warning(
                f"{key} can be read by other users of this machine",
                hint=f"chmod 600 {key}; if others may have read it, delete it: everyone signs in anew.",
                id="steelyard.W001",
            )
        ]
    return []


@register("steelyard")
def check_path_roots(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Each folder that is offered for ``source: path`` is there."""
    return [
        Warning(
            f"STEELYARD_PATH_ROOTS names {root}, which is no folder",
            hint="Make the folder, or take it out; roots are separated by ':'.",
            id="steelyard.W002",
        )
        for root in settings.STEELYARD_PATH_ROOTS
        if not Path(root).is_dir()
    ]


@register("steelyard")
def check_cache(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """The model cache can be made or written."""
    folder = Path(settings.STEELYARD_CACHE)
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(there, os.W_OK | os.X_OK):
        return []
    return [
        Error(
            f"the cache {folder} can't be written",
            hint="Set STEELYARD_CACHE to a folder of this user with room for models.",
            id="steelyard.E002",
        )
    ]


@register("steelyard")
def check_production(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Production knows the name it is called by."""
    if not settings.ENVIRONMENT.production:
        return []
    found: list[CheckMessage] = []
    if not settings.ALLOWED_HOSTS:
        found.append(
            Error(
                "STEELYARD_ENV=production, but no host name is allowed, so every request would be refused",
                hint="Set ALLOWED_HOSTS, e.g. ALLOWED_HOSTS=steelyard.example.org.",
                id="steelyard.E003",
            )
        )
    if settings.DEBUG:
        found.append(Error("DEBUG is on in production", hint="Take DEBUG out of the environment.", id="steelyard.E004"))
    if settings.STEELYARD_URL and not settings.STEELYARD_URL.startswith("https://"):
        found.append(
            Error(
                f"STEELYARD_URL is {settings.STEELYARD_URL!r}; production is served by HTTPS",
                hint="Write https://...; set BEHIND_PROXY=1 where a proxy ends TLS.",
                id="steelyard.E005",
            )
        )
    return found
