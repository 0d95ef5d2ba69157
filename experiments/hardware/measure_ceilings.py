"""Measures one device's ceilings and prints them as JSON. Run as a script in a process of its own, never imported.

Usage: python -P measure_ceilings.py DEVICE THREADS COPY_BYTES [CORE,CORE,...]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

#: Seconds for each dtype and for the copy; sizes grow only while the next one fits.
BUDGET_S = 0.45
DTYPES = ("float32", "bfloat16", "float16", "int8")


def main(device: str, threads: int, copy_bytes: int, cores: str = "") -> None:
    """Print ``{"copy_bytes_per_s": .., "gemm_flops_per_s": {dtype: ..}}``."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    import torch

    torch.set_num_threads(threads)

    def finished() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    def seconds(call: Callable[[], Any]) -> float:
        finished()
        start = time.perf_counter()
        call()
        finished()
        return time.perf_counter() - start

    copy = copy_rate(torch, device, copy_bytes, seconds)
    rates = {dtype: gemm_rate(torch, device, dtype, seconds) for dtype in DTYPES}
    gemm = {dtype: rate for dtype, rate in rates.items() if rate is not None}
    print(json.dumps({"copy_bytes_per_s": copy, "gemm_flops_per_s": gemm}))  # noqa: T201 - its only output


def copy_rate(torch: Any, device: str, size: int, seconds: Callable[[Callable[[], Any]], float]) -> float:
    """Bytes read plus bytes written per second of the best copy between two buffers of ``size`` bytes (as STREAM)."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    target.copy_(source)  # touches every page
    best, spent = float("inf"), 0.0
    while spent < BUDGET_S:
        took = seconds(lambda: target.copy_(source))
        best, spent = min(best, took), spent + took
    return 2.0 * (size // 4 * 4) / best


def gemm_rate(torch: Any, device: str, dtype: str, seconds: Callable[[Callable[[], Any]], float]) -> float | None:
    """FLOP/s (multiply and add apart) of the best square product; None if there is no kernel for ``dtype``.

    Sizes double from 128 while the next, eight times the work, fits the budget: so a dtype without hardware support,
    a hundred times slower, does not hold up the others.
    """
    n, spent, best = 128, 0.0, 0.0
    limit = 8192 if device.startswith("cuda") else 2048
    while n <= limit:
        try:
            if dtype == "int8":
                a = torch.randint(-127, 127, (n, n), dtype=torch.int8, device=device)
                product = lambda a=a: torch._int_mm(a, a)  # noqa: E731
            else:
                a = torch.randn(n, n, device=device).to(getattr(torch, dtype))
                product = lambda a=a: a @ a  # noqa: E731
            first = seconds(product)  # kernels are chosen and compiled here
            took = min(seconds(product) for _ in range(3 if first < BUDGET_S / 10 else 1))
        except RuntimeError as error:
            if best == 0.0:
                print(f"{dtype}: {error}", file=sys.stderr)  # noqa: T201
                return None
            break
        spent += first + took
        best = max(best, 2 * n**3 / took)
        if spent + 2 * 8 * took > BUDGET_S:
            break
        n *= 2
    return best


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5])
