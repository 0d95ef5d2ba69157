"""From statistics to measurements: one rule for values, intervals and what is undefined."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from experiments.hardware import explain_slow, isa
from experiments.protocols import MetricDefinition, Observations
from experiments.records import Interval, Measurement
from experiments.stats import Estimate, Undefined, verdict

Point = Mapping[str, str | int | float]


def reading(
    definition: MetricDefinition,
    value: float | Estimate | Undefined,
    *,
    at: Point | None = None,
    interval: Interval | None = None,
    n: int | None = None,
    samples: tuple[float, ...] | None = None,
    note: str | None = None,
) -> Measurement:
    """The measurement of ``definition``: a number, an estimate with its interval, or the reason why there is none.

    A value that is not finite becomes undefined; it is never shown as a number.
    """
    common: dict[str, Any] = {"metric": definition.name, "unit": definition.unit, "at": dict(at or {}), "note": note}
    if isinstance(value, Undefined):
        return Measurement(value=None, reason=value.reason, n=n, samples=samples, **common)
    if isinstance(value, Estimate):
        interval, number, n = value.interval, value.value, value.n if n is None else n
    else:
        number = value
    if not math.isfinite(number):
        return Measurement(value=None, reason=f"the value is {number}", n=n, samples=samples, **common)
    if interval is not None and not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        interval = None
    return Measurement(value=number, interval=interval, n=n, samples=samples, **common)


def timing_point(seen: Observations, batch_size: int) -> dict[str, str | int | float]:
    """The dimensions of a timed number: the batch size, and the sequence length where there are tokens."""
    point: dict[str, str | int | float] = {"batch_size": batch_size}
    if seen.task != "image-classification":
        point["sequence_length"] = seen.spec.workload.sequence_length
    if seen.task == "text-generation":
        point["new_tokens"] = seen.spec.workload.new_tokens
    return point


def paired_note(seen: Observations, interval: Interval | None) -> str:
    """What a speed-up's interval allows to be said, and why a narrow format is slow on this CPU."""
    if seen.is_baseline:
        return "A/A: the baseline against itself; this interval is the noise floor"
    said = verdict(interval)
    if said == "slower" and seen.spec.resources.device == "cpu":
        reason = explain_slow(seen.dtype, isa())
        return f"{said}; {reason}" if reason else said
    return said


def without_tokens(seen: Observations, batch_size: int) -> Undefined | None:
    """Why a generation's timing does not count: a candidate that makes no tokens is not fast, it is broken."""
    if seen.task != "text-generation":
        return None
    blocks = [b for b in seen.blocks if b.side == "candidate" and b.batch_size == batch_size]
    if blocks and any(b.tokens_out == 0 for b in blocks):
        return Undefined("no tokens were generated")
    return None
