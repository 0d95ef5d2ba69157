"""How often one team may submit, so that a script in a loop can't fill the database."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from django.http import HttpRequest
from ninja.errors import Throttled
from ninja.throttling import BaseThrottle

from webapp.api.auth import caller


class TeamRate(BaseThrottle):
    """At most ``count`` calls of a team within any ``seconds``, in this process; later ones get 429.

    Args:
        count: calls.
        seconds: length of the window.
        clock: monotonic time in seconds.
    """

    def __init__(self, count: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: dict[int, deque[float]] = {}

    def allow_request(self, request: HttpRequest) -> bool:
        """True, or :class:`ninja.errors.Throttled` with the seconds to wait.

        The wait travels with the exception: ninja would ask this object, which all threads share, a second time.
        """
        wait = self.take(caller(request).team.pk)
        if wait is not None:
            raise Throttled(wait=wait)
        return True

    def take(self, team_id: int) -> int | None:
        """Count a call of the team, or say in how many whole seconds there is room for it."""
        with self._lock:
            now = self._clock()
            calls = self._calls.setdefault(team_id, deque())
            while calls and calls[0] <= now - self._seconds:
                calls.popleft()
            if len(calls) >= self._count:
                return max(1, math.ceil(calls[0] + self._seconds - now))
            calls.append(now)
            return None
