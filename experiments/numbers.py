"""Numbers as text: three significant digits, intervals beside them."""

from __future__ import annotations

import math

from experiments.records import Measurement


def significant(value: float | None, digits: int = 3) -> str:
    """``1.82``, ``104``, ``1,143``, ``0.0042``, ``3.1e-09``; whole digits are never rounded away."""
    if value is None or not math.isfinite(value):
        return "undefined"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    size = math.floor(math.log10(abs(rounded)))
    if size < -4:
        return f"{value:.1e}"
    return f"{value:,.{max(0, digits - 1 - size)}f}"


def ratio_text(found: Measurement) -> str:
    """``1.82x [1.77, 1.88]``, without brackets where there is no interval."""
    if found.value is None:
        return found.reason or "undefined"
    text = f"{significant(found.value)}x"
    if found.interval is not None:
        text += f" [{significant(found.interval.low)}, {significant(found.interval.high)}]"
    return text
