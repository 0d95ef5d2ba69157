"""One way for tests to wait for what another process does: until a condition holds, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


def wait_for(condition: Callable[[], Seen], timeout_s: float = 30.0) -> Seen:
    """What *condition* says as soon as that is true.

    Raises:
        AssertionError: It was not true for *timeout_s* seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"this never came true within {timeout_s:g} s: {seen!r}"
        time.sleep(0.05)
    return seen
