"""Share of the hardware's limit: how near a result comes to the nearer of two measured ceilings."""

from __future__ import annotations

from typing import ClassVar

from experiments.parts.readings import reading, timing_point, without_tokens
from experiments.protocols import Metric, MetricDefinition, Observations
from experiments.records import Measurement
from experiments.stats import Undefined, percentile

SHARE = MetricDefinition(
    name="share_of_limit",
    title="Share of the limit",
    unit="share",
    higher_is_better=True,
    definition="Shortest time that memory bandwidth and matrix products as measured here allow, over the median time "
    "taken; of a call, or of an output token.",
    source="Williams, Waterman & Patterson (2009), Roofline.",
    group="limit",
)


class Limit(Metric):
    """One share at each batch size; the note names the ceiling that is nearer."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (SHARE,)

    def measure(self, seen: Observations) -> list[Measurement]:
        """Weights must be read at least once a step, and every multiplication be made."""
        return [self._at(seen, size) for size in seen.spec.workload.batch_sizes]

    def _at(self, seen: Observations, size: int) -> Measurement:
        at = timing_point(seen, size)
        taken = without_tokens(seen, size) or step_seconds(seen, size)
        if isinstance(taken, Undefined):
            return reading(SHARE, taken, at=at)
        floors = floor_seconds(seen, size)
        if isinstance(floors, Undefined):
            return reading(SHARE, floors, at=at)
        nearer = max(floors, key=lambda name: floors[name])
        words = ", ".join(f"{name} allows {seconds * 1e3:.3g} ms" for name, seconds in floors.items())
        note = f"nearer ceiling: {nearer}; {words}, taken {taken * 1e3:.3g} ms"
        if floors[nearer] > taken:
            # What is exceeded is no limit: a share above 1 would mislead.
            note += "; what was exceeded is not this machine's limit"
            return reading(SHARE, Undefined("above the measured ceiling"), at=at, note=note)
        return reading(SHARE, floors[nearer] / taken, at=at, note=note)


def step_seconds(seen: Observations, size: int) -> float | Undefined:
    """Median seconds of one step: an output token of all sequences, or a call."""
    blocks = [b for b in seen.blocks if b.side == "candidate" and b.batch_size == size]
    if seen.task == "text-generation":
        times = [gap for block in blocks for gap in block.token_gaps_ns]
    else:
        times = [t for block in blocks for t in block.latency_ns]
    median = percentile(times, 50)
    if isinstance(median, Undefined) or median <= 0:
        return Undefined("nothing was timed at this batch size")
    return median / 1e9


def floor_seconds(seen: Observations, size: int) -> dict[str, float] | Undefined:
    """Ceiling -> least seconds of one step, for those ceilings whose work and rate are known."""
    if seen.ceilings is None:
        return Undefined("the machine's ceilings were not measured")
    floors: dict[str, float] = {}
    moved = seen.work.get("bytes_per_step") or seen.weights_bytes or seen.artifact.bytes
    if moved:
        floors["memory bandwidth"] = moved / seen.ceilings.copy_bytes_per_s
    per_token = seen.work.get("flops_per_token") or 2.0 * seen.artifact.parameters
    flops = per_token if seen.task == "text-generation" else seen.work.get("flops_per_sample")
    rate = seen.ceilings.gemm_flops_per_s.get(seen.dtype)
    if flops and rate:
        floors[f"{seen.dtype} matrix products"] = size * flops / rate
    return floors or Undefined("neither the bytes nor the operations of a step are known")
