"""Addresses below ``/api/v1/``."""

from __future__ import annotations

from django.urls import path, re_path

from webapp.api.api import api
from webapp.api.errors import not_found

urlpatterns = [
    path("", api.urls),
    re_path(r"^(?P<path>.*)$", not_found),
]
