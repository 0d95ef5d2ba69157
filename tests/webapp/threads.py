"""Calls that begin together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection


def at_once(call: Callable[[], Any], threads: int) -> list[Any]:
    """The results of ``threads`` calls that begin together; an exception is a result."""
    gate = threading.Barrier(threads)

    def run() -> Any:
        gate.wait()
        try:
            return call()
        except Exception as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(run) for _ in range(threads)]]
