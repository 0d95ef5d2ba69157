"""Cost of requests and tokens: price of the devices over the throughput that counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from experiments.hardware import cpu_model
from experiments.parts.prices import HourlyPrice, price_of
from experiments.parts.readings import reading, without_tokens
from experiments.protocols import Block, Metric, MetricDefinition, Observations
from experiments.records import DeviceFacts, Interval, Measurement
from experiments.stats import Estimate, Undefined, percentile, ratio_of_sums

REQUESTS = MetricDefinition(
    name="cost_per_1k_requests_usd",
    title="Cost of 1,000 requests",
    unit="USD",
    higher_is_better=False,
    definition="Price of an hour of the devices over the requests they answer in an hour, times 1,000; at the "
    "throughput that meets the study's service level, else at the best closed-loop throughput.",
    group="cost",
)
TOKENS = MetricDefinition(
    name="cost_per_1m_tokens_usd",
    title="Cost of a million output tokens",
    unit="USD",
    higher_is_better=False,
    definition="Price of an hour of the devices over the tokens they generate in an hour, times a million; at the "
    "throughput that meets the study's service level, else at the best closed-loop throughput.",
    group="cost",
)


class RequestCost(Metric):
    """USD for 1,000 requests."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (REQUESTS,)

    def measure(self, seen: Observations) -> list[Measurement]:
        """One number for the experiment; the note says at which batch size and price."""
        return [_cost(REQUESTS, seen, 1_000, lambda block: block.batch_size * len(block.latency_ns))]


class TokenCost(Metric):
    """USD for a million output tokens."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (TOKENS,)
    tasks: ClassVar[frozenset[str]] = frozenset({"text-generation"})

    def measure(self, seen: Observations) -> list[Measurement]:
        """One number for the experiment; the note says at which batch size and price."""
        return [_cost(TOKENS, seen, 1_000_000, lambda block: block.tokens_out)]


@dataclass(frozen=True)
class _Rate:
    batch_size: int
    per_second: Estimate


def _cost(definition: MetricDefinition, seen: Observations, units: int, count: Callable[[Block], int]) -> Measurement:
    price = _price(seen)
    if isinstance(price, Undefined):
        return reading(definition, price)
    best = _best(seen, count)
    if isinstance(best, Undefined):
        return reading(definition, best)
    rate = best.per_second
    scale = price.usd_per_hour / 3600 * units
    interval = None
    if rate.interval is not None and rate.interval.low > 0:
        interval = Interval(
            low=scale / rate.interval.high,
            high=scale / rate.interval.low,
            method=f"throughput: {rate.interval.method}; the price is exact",
        )
    which = "throughput at the service level" if _slo(seen) else "best closed-loop throughput"
    note = f"{which}, batch {best.batch_size}; {price.usd_per_hour:.4g} USD/h: {price.source}"
    return reading(definition, scale / rate.value, interval=interval, note=note)


def _price(seen: Observations) -> HourlyPrice | Undefined:
    given = seen.spec.price
    if given is not None:
        return HourlyPrice(given.usd_per_hour * seen.spec.devices, given.source)
    devices = seen.devices
    if not devices and seen.spec.resources.device == "cpu" and seen.ceilings is not None:
        cores = tuple(range(seen.ceilings.threads))
        devices = (DeviceFacts(name="cpu:0", kind="cpu", model=cpu_model(), cores=cores),)
    return price_of(devices)


def _slo(seen: Observations) -> dict[float, float]:
    """Percentile -> most milliseconds."""
    slo = seen.spec.slo
    limits = {50.0: slo.latency_p50_ms, 99.0: slo.latency_p99_ms} if slo else {}
    return {p: limit for p, limit in limits.items() if limit is not None}


def _best(seen: Observations, count: Callable[[Block], int]) -> _Rate | Undefined:
    """The batch size with the highest throughput among those that meet the service level."""
    rates: list[_Rate] = []
    missed: list[str] = []
    for size in seen.spec.workload.batch_sizes:
        blocks = [b for b in seen.blocks if b.side == "candidate" and b.batch_size == size]
        if not blocks or without_tokens(seen, size):
            continue
        why = _misses(seen, size)
        if why:
            missed.append(f"batch {size}: {why}")
            continue
        rate = ratio_of_sums(
            [count(b) for b in blocks], [(b.wall_ns or sum(b.latency_ns)) / 1e9 for b in blocks], seen.spec.seed
        )
        if isinstance(rate, Estimate) and rate.value > 0:
            rates.append(_Rate(size, rate))
    if rates:
        return max(rates, key=lambda r: r.per_second.value)
    if missed:
        return Undefined(f"no batch size meets the service level ({'; '.join(missed)})")
    return Undefined("no throughput was measured")


def _misses(seen: Observations, size: int) -> str | None:
    times = [t / 1e6 for t in seen.latencies(size)]
    for p, limit in _slo(seen).items():
        value = percentile(times, p)
        if isinstance(value, Undefined):
            return f"p{p:g} {value.reason}"
        if value > limit:
            return f"p{p:g} is {value:.3g} ms, over {limit:g} ms"
    return None
