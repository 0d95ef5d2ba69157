"""A hub on the loopback interface: real HTTP, the hub's API, repositories made of files in memory."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """Files by name, one commit; ``state`` makes the hub behave as it does for gated or slow ones."""

    files: dict[str, bytes]
    branches: tuple[str, ...] = ("main",)
    gated: bool = False
    delay_s: float = 0.0
    status: int | None = None

    @property
    def commit(self) -> str:
        """A commit hash that changes with the contents."""
        total = hashlib.sha1()
        for name in sorted(self.files):
            total.update(name.encode() + self.files[name])
        return total.hexdigest()


@dataclass
class Hub:
    """What is served, and every request that came."""

    models: dict[str, Repository] = field(default_factory=dict)
    datasets: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    endpoint: str = ""


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub on a free port of 127.0.0.1 until the block ends."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        api = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path)
        resolve = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if api:
            self._api(*api.groups(), with_body=with_body)
        elif resolve:
            self._file(*resolve.groups(), with_body=with_body)
        else:
            self._send(404, b"{}", with_body=with_body)

    def _repository(self, kind: str | None, name: str, *, with_body: bool) -> Repository | None:
        repository = (self.hub.datasets if kind else self.hub.models).get(name)
        if repository is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body=with_body)
            return None
        time.sleep(repository.delay_s)  # a slow hub is what is tested here
        if repository.gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, with_body=with_body)
            return None
        if repository.status:
            self._send(repository.status, b"{}", with_body=with_body)
            return None
        return repository

    def _api(self, kind: str, name: str, what: str | None, revision: str | None, *, with_body: bool) -> None:
        repository = self._repository("datasets" if kind == "datasets" else None, name, with_body=with_body)
        if repository is None:
            return
        if revision and revision not in (*repository.branches, repository.commit):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body=with_body)
            return
        if what == "tree":
            rows: Any = [
                {"type": "file", "path": n, "size": len(b), "oid": _etag(b)} for n, b in repository.files.items()
            ]
        else:
            siblings = [{"rfilename": n, "size": len(b), "blobId": _etag(b)} for n, b in repository.files.items()]
            rows = {"id": name, "sha": repository.commit, "private": False, "tags": [], "siblings": siblings}
        self._send(200, json.dumps(rows).encode(), with_body=with_body)

    def _file(self, kind: str | None, name: str, revision: str, file: str, *, with_body: bool) -> None:
        repository = self._repository(kind, name, with_body=with_body)
        if repository is None:
            return
        if revision not in (*repository.branches, repository.commit):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body=with_body)
            return
        if file not in repository.files:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, with_body=with_body)
            return
        body = repository.files[file]
        headers = {"ETag": f'"{_etag(body)}"', "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        self._send(200, body, headers, with_body=with_body)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, with_body: bool) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _etag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
