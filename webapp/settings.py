"""Django's settings. Values come from the environment through :mod:`webapp.core.environment`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import dj_database_url
from csp.constants import NONCE, NONE, SELF

from webapp.core import environment
from webapp.core.logs import configuration

ENVIRONMENT = environment.read()
BASE_DIR = Path(__file__).resolve().parent.parent

# ------------------------------------------------------------------------------------------------------ Steelyard

STEELYARD_HOME = ENVIRONMENT.home
STEELYARD_CACHE = ENVIRONMENT.cache
STEELYARD_PATH_ROOTS = ENVIRONMENT.path_roots
STEELYARD_OFFLINE = ENVIRONMENT.offline
STEELYARD_URL = ENVIRONMENT.public_url
BROKER_URL = ENVIRONMENT.broker_url
LOG_ROOT = STEELYARD_HOME / "logs"

# ----------------------------------------------------------------------------------------------------------- core

SECRET_KEY = ENVIRONMENT.secret_key
DEBUG = ENVIRONMENT.debug
ALLOWED_HOSTS = list(ENVIRONMENT.allowed_hosts)
ROOT_URLCONF = "webapp.urls"
WSGI_APPLICATION = "webapp.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
LOGGING_CONFIG = "logging.config.dictConfig"
LOGGING = configuration(level=ENVIRONMENT.log_level, as_json=ENVIRONMENT.production)
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_000_000  # a spec may have 1 MB; uploads of files are streamed

INSTALLED_APPS = [
    "webapp.core",
    "webapp.accounts",
    "webapp.runs",
    "webapp.compare",
    "webapp.api",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.humanize",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_htmx",
    "csp",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "webapp.core.middleware.SignInRequired",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "webapp.accounts.context.team",
            ]
        },
    }
]

# ------------------------------------------------------------------------------------------------------- database


def database(url: str) -> dict[str, Any]:
    """Django's database settings of ``url``: SQLite in WAL mode with immediate transactions, or PostgreSQL."""
    settings: dict[str, Any] = dict(dj_database_url.parse(url))
    if settings["ENGINE"] == "django.db.backends.sqlite3":
        # IMMEDIATE: a transaction that will write takes the write lock when it begins, so that it waits for its turn
        # instead of failing when it upgrades. Foreign keys are switched on by Django.
        settings["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA temp_store=MEMORY;",
        }
        # A file, so that threads and processes of a test see one database as they do in service.
        settings["TEST"] = {"NAME": str(Path(tempfile.gettempdir()) / f"steelyard-test-{os.getpid()}.sqlite3")}
    else:
        settings["CONN_MAX_AGE"] = 60
        settings["CONN_HEALTH_CHECKS"] = True
    return settings


DATABASES = {"default": database(ENVIRONMENT.database_url)}

# --------------------------------------------------------------------------------------------------- people, forms

AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "signin"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "signin"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"

# --------------------------------------------------------------------------------------------------------- static

STATIC_URL = "/static/"
STATIC_ROOT = STEELYARD_HOME / "static"
STATIC_ROOT.mkdir(exist_ok=True)  # whitenoise looks there even where the finders serve
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "webapp.core.finders.PlotlyFinder",
]
# In production `collectstatic` gives hashed, compressed files; elsewhere files are served from where they lie.
WHITENOISE_USE_FINDERS = not ENVIRONMENT.production
STORAGES = {
    "default": {
        "BACKEND": "webapp.core.linking_storage.LinkingStorage",
        "OPTIONS": {"location": str(STEELYARD_HOME / "artifacts")},
    },
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if ENVIRONMENT.production
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}

# ------------------------------------------------------------------------------------------------------- security

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "img-src": [SELF, "data:", "blob:"],  # Plotly's picture download
        "font-src": [SELF],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_TRUSTED_ORIGINS = [STEELYARD_URL] if STEELYARD_URL else []

# Plain HTTP on 127.0.0.1 must work, so what needs HTTPS is switched on in production only.
SESSION_COOKIE_SECURE = ENVIRONMENT.production
CSRF_COOKIE_SECURE = ENVIRONMENT.production
SECURE_SSL_REDIRECT = ENVIRONMENT.production
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$"]  # a load balancer asks without TLS
SECURE_HSTS_SECONDS = 31_536_000 if ENVIRONMENT.production else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = ENVIRONMENT.production
SECURE_HSTS_PRELOAD = ENVIRONMENT.production
if ENVIRONMENT.behind_proxy:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
