"""Speaks to a Steelyard server over its REST API: one key, bounded patience, plain errors.

Only the standard library is imported, so that ``steelyard submit`` starts at once in a CI job.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Answers that say "later": the same request is sent again.
_LATER = frozenset({429, 500, 502, 503, 504})


class ServerRefused(Exception):
    """The server answered with an error that sending again will not mend."""

    def __init__(self, status: int, message: str, fields: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.fields = fields

    def lines(self) -> list[str]:
        """One line per problem: 'path: reason' where the server named the field."""
        return [f"{path}: {reason}" if path else reason for path, reason in self.fields] or [str(self)]


class ServerUnreachable(Exception):
    """Nothing usable was answered within the client's patience."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another address, and would turn a POST into a GET."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass
class Client:
    """One server and one key.

    Attributes:
        server: base address, e.g. ``http://127.0.0.1:8000``.
        key: API key, sent as ``Authorization: Bearer``.
        patience_s: seconds for which connection errors and "later" answers are retried.
        request_s: seconds that one answer may take, beyond what a long poll asks for.
        tell: receives one line before each retry.
    """

    server: str
    key: str = field(repr=False)
    patience_s: float = 60.0
    request_s: float = 30.0
    tell: Callable[[str], None] = field(default=lambda line: None, repr=False)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.server)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{self.server!r} is not a server's address such as http://127.0.0.1:8000")
        self.server = self.server.rstrip("/")
        self._opener = urllib.request.build_opener(_NoRedirect)

    def submit(self, body: bytes, *, media: str, idempotency_key: str) -> dict[str, Any]:
        """Queue a study; the same ``idempotency_key`` twice gives the first study."""
        headers = {"Content-Type": media, "Idempotency-Key": idempotency_key}
        return self._json("POST", "studies", body=body, headers=headers)

    def study(self, study: int) -> dict[str, Any]:
        """State of a study and of its experiments."""
        return self._json("GET", f"studies/{study}")

    def events(self, experiment: int, *, after: int, wait_s: float) -> dict[str, Any]:
        """Events with a sequence number above ``after``; waits up to ``wait_s`` seconds for the first."""
        return self._json("GET", f"experiments/{experiment}/events?after={after}&wait={wait_s:g}", wait_s=wait_s)

    def results(self, study: int) -> dict[str, Any]:
        """The study's report (``experiments.records.StudyReport``) as plain data."""
        return self._json("GET", f"studies/{study}/results?format=json")

    def markdown(self, study: int) -> str:
        """The results as a Markdown table."""
        return self._ask("GET", f"studies/{study}/results?format=md").decode("utf-8", "replace")

    def gate(self, study: int, *, wait_s: float) -> dict[str, Any]:
        """The gate's verdict; waits up to ``wait_s`` seconds while it is pending."""
        return self._json("GET", f"studies/{study}/gate?wait={wait_s:g}", wait_s=wait_s)

    def has_gate(self) -> bool:
        """True if this server's API offers a gate."""
        return any(path.endswith("/gate") for path in self._json("GET", "openapi.json").get("paths", {}))

    def _json(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> dict[str, Any]:
        answer = self._ask(method, path, body=body, headers=headers, wait_s=wait_s)
        try:
            data = json.loads(answer)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise ServerRefused(200, f"{self.server} does not answer as a Steelyard server")
        return data

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> bytes:
        """The body of a successful answer, after as many tries as patience allows."""
        url = f"{self.server}/api/v1/{path}"
        request = urllib.request.Request(url, data=body, method=method, headers=dict(headers or {}))  # noqa: S310
        request.add_header("Authorization", f"Bearer {self.key}")
        request.add_header("Accept", "application/json, text/markdown;q=0.9, */*;q=0.1")
        started, pause = time.monotonic(), 0.5
        while True:
            later: float | None = None
            try:
                with self._opener.open(request, timeout=self.request_s + wait_s) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in _LATER:
                        raise _refusal(error, self.server) from None
                    reason = f"answered {error.code} {error.reason}"
                    later = _seconds(error.headers.get("Retry-After"))
            except urllib.error.URLError as error:
                if isinstance(error.reason, ssl.SSLCertVerificationError):
                    raise ServerUnreachable(f"{self.server}: {error.reason.verify_message}") from None
                reason = str(getattr(error.reason, "strerror", None) or error.reason)
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
            left = self.patience_s - (time.monotonic() - started)
            if left <= 0:
                raise ServerUnreachable(f"{self.server}: {reason} (tried for {self.patience_s:.0f} s)") from None
            delay = min(later if later is not None else pause, left)
            self.tell(f"{self.server}: {reason}; trying again in {delay:.1f} s")
            time.sleep(delay)
            pause = min(pause * 2, 8.0)


def _seconds(header: str | None) -> float | None:
    """``Retry-After`` in seconds, if it is given as a number."""
    return float(header) if header and header.isdigit() else None


def _refusal(error: urllib.error.HTTPError, server: str) -> ServerRefused:
    """The server's error envelope, or a sentence where another kind of server answered."""
    if 300 <= error.code < 400:
        return ServerRefused(error.code, f"{server} redirects to {error.headers.get('Location')}; use that address")
    try:
        envelope = json.loads(error.read())["error"]
        fields = tuple((str(f["path"]), str(f["message"])) for f in envelope.get("fields", ()))
        return ServerRefused(error.code, str(envelope["message"]), fields)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, http.client.HTTPException):
        return ServerRefused(error.code, f"{server} answered {error.code} {error.reason}; is it a Steelyard server?")
