"""Long polls: an answer is held back until there is something to say, without holding up the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Longest wait of one call; below the idle limits of usual proxies.
LONGEST_S = 30.0
#: Each waiting call keeps a thread of the server, so only so many wait at once; further ones are answered at once.
SLOTS = 8
#: The truth is in the database, which other processes change and which can't wake us: it is asked this often.
EVERY_S = 0.25

_slots = threading.BoundedSemaphore(SLOTS)


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Return True as soon as ``ready()``, or False after ``seconds`` (or at once, if too many wait already)."""
    if ready():
        return True
    deadline = time.monotonic() + min(seconds, LONGEST_S)
    if seconds <= 0 or not _slots.acquire(blocking=False):
        return False
    try:
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(EVERY_S, left))
            if ready():
                return True
        return False
    finally:
        _slots.release()
