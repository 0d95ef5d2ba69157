"""What the environment says, typed. Every variable that Steelyard's web and worker processes read is named here."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

REPOSITORY = Path(__file__).resolve().parent.parent.parent

#: A Unix socket's path may have 107 bytes on Linux.
MAX_SOCKET_PATH = 100


class BadEnvironment(ValueError):
    """A variable that can't be used, with what to write instead."""


@dataclass(frozen=True)
class Environment:
    """The environment of a web or worker process.

    Attributes:
        home: folder of the database, the generated secret key, logs and artifacts (``STEELYARD_HOME``).
        production: ``STEELYARD_ENV=production``: HTTPS only, hashed static files, JSON logs.
        database_url: ``DATABASE_URL``, or SQLite below ``home``.
        broker_url: ``REDIS_URL``, or the Unix socket of the embedded Redis that ``manage.py up`` starts.
        embedded_broker: True where ``REDIS_URL`` is not set.
        path_roots: folders below which ``source: path`` may point (``STEELYARD_PATH_ROOTS``, split by ':').
        cache: the engine's cache (``STEELYARD_CACHE``).
        public_url: address that people type, e.g. ``https://steelyard.example.org`` (``STEELYARD_URL``).
    """

    home: Path
    production: bool
    debug: bool
    secret_key: str
    database_url: str
    broker_url: str
    embedded_broker: bool
    allowed_hosts: tuple[str, ...]
    path_roots: tuple[Path, ...]
    cache: Path
    public_url: str
    behind_proxy: bool
    offline: bool
    log_level: str

    @property
    def broker_socket(self) -> Path:
        """Unix socket of the embedded Redis."""
        return broker_socket(self.home)


def read(source: Mapping[str, str] = os.environ) -> Environment:
    """The environment as typed values; makes ``STEELYARD_HOME`` and the secret key if they are absent.

    Raises:
        BadEnvironment: a value that can't be used.
    """
    home = Path(source.get("STEELYARD_HOME") or REPOSITORY / "var").expanduser().absolute()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    kind = source.get("STEELYARD_ENV") or "local"
    if kind not in ("local", "production"):
        raise BadEnvironment(f"STEELYARD_ENV is {kind!r}; write 'local' or 'production'")
    redis_url = source.get("REDIS_URL", "")
    hosts = tuple(h.strip() for h in source.get("ALLOWED_HOSTS", "").split(",") if h.strip())
    return Environment(
        home=home,
        production=kind == "production",
        debug=_flag(source, "DEBUG"),
        secret_key=source.get("SECRET_KEY") or _secret_key(home / "secret_key"),
        database_url=source.get("DATABASE_URL") or f"sqlite:///{home / 'steelyard.sqlite3'}",
        broker_url=redis_url or f"redis+socket://{broker_socket(home)}",
        embedded_broker=not redis_url,
        allowed_hosts=hosts or (() if kind == "production" else ("localhost", "127.0.0.1", "[::1]")),
        path_roots=tuple(
            Path(part).expanduser().absolute() for part in source.get("STEELYARD_PATH_ROOTS", "").split(":") if part
        ),
        cache=_cache(source),
        public_url=source.get("STEELYARD_URL", "").rstrip("/"),
        behind_proxy=_flag(source, "BEHIND_PROXY"),
        offline=_flag(source, "HF_HUB_OFFLINE"),
        log_level=_level(source),
    )


def broker_socket(home: Path) -> Path:
    """Where the embedded Redis of ``home`` listens; below the temporary folder if the path would be too long."""
    near = home / "run" / "redis.sock"
    if len(os.fsencode(near)) <= MAX_SOCKET_PATH:
        return near
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"steelyard-{os.getuid()}-{name}" / "redis.sock"


def _cache(source: Mapping[str, str]) -> Path:
    if configured := source.get("STEELYARD_CACHE"):
        return Path(configured).expanduser().absolute()
    root = source.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "steelyard"


def _flag(source: Mapping[str, str], name: str) -> bool:
    value = source.get(name, "").strip().lower()
    if value in ("", "0", "false", "no", "off"):
        return False
    if value in ("1", "true", "yes", "on"):
        return True
    raise BadEnvironment(f"{name} is {value!r}; write 1 or 0")


def _level(source: Mapping[str, str]) -> Literal["DEBUG", "INFO", "WARNING", "ERROR"]:
    value = (source.get("LOG_LEVEL") or "INFO").upper()
    if value not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise BadEnvironment(f"LOG_LEVEL is {value!r}; write DEBUG, INFO, WARNING or ERROR")
    return value  # type: ignore[return-value]


def _secret_key(path: Path) -> str:
    """The generated key of this installation, made once with mode 0600, whole or not at all."""
    if not path.exists():
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(64))
        try:
            os.link(scratch, path)  # the first of two processes wins
        except FileExistsError:
            pass
        finally:
            scratch.unlink()
    return path.read_text().strip()
