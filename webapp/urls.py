"""All addresses. Each room names its own in its ``urls.py``."""

from __future__ import annotations

from django.contrib.auth import views as auth
from django.contrib.auth.decorators import login_not_required
from django.urls import URLPattern, URLResolver, include, path

from webapp.core import views

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
    path("signin/", auth.LoginView.as_view(template_name="accounts/signin.html"), name="signin"),
    path("signout/", login_not_required(auth.LogoutView.as_view()), name="signout"),
    path("", include("webapp.runs.urls")),
    path("", include("webapp.compare.urls")),
    path("api/v1/", include("webapp.api.urls")),
]
