"""Latency of requests, throughput, and the speed-up over the baseline."""

from __future__ import annotations

from typing import ClassVar

from experiments.parts.readings import paired_note, reading, timing_point, without_tokens
from experiments.protocols import Metric, MetricDefinition, Observations
from experiments.records import Measurement
from experiments.stats import Undefined, block_percentile, ratio_of_medians, ratio_of_sums

MS = 1e6  # nanoseconds
CLOSED_LOOP = "closed loop: each request starts when the one before has ended"
_RULE = "Minimum samples: binomial rule at 99 % confidence, as in MLPerf LoadGen."

PERCENTILES: dict[float, MetricDefinition] = {
    p: MetricDefinition(
        name=f"latency_p{p:g}_ms",
        title=f"Latency p{p:g}",
        unit="ms",
        higher_is_better=False,
        definition=f"Time of one call that {p:g} % of calls do not exceed, one call at a time.",
        source=_RULE if p != 50 else "",
        group="latency",
    )
    for p in (50, 90, 95, 99)
}
THROUGHPUT = MetricDefinition(
    name="throughput_samples_per_s",
    title="Throughput",
    unit="samples/s",
    higher_is_better=True,
    definition="Samples answered per second of timed blocks, one call at a time.",
    group="latency",
)
SPEEDUP = MetricDefinition(
    name="speedup_p50",
    title="Speed-up",
    unit="x",
    higher_is_better=True,
    definition="Median latency of the baseline over that of the candidate, from blocks that alternate in one attempt.",
    source="Paired block bootstrap t interval (Efron & Tibshirani 1993; Hesterberg 2015).",
    group="latency",
)


class Latency(Metric):
    """Percentiles of latency, throughput and speed-up at each batch size."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (*PERCENTILES.values(), THROUGHPUT, SPEEDUP)

    def measure(self, seen: Observations) -> list[Measurement]:
        """All raw samples are kept on the median."""
        return [m for size in seen.spec.workload.batch_sizes for m in self._at(seen, size)]

    def _at(self, seen: Observations, size: int) -> list[Measurement]:
        at, seed = timing_point(seen, size), seen.spec.seed
        blocks = [b for b in seen.blocks if b.side == "candidate" and b.batch_size == size]
        broken = without_tokens(seen, size) or (None if blocks else Undefined("nothing was timed at this batch size"))
        times = [[t / MS for t in block.latency_ns] for block in blocks]
        samples = tuple(t for block in times for t in block)
        made = [
            reading(
                definition,
                broken or block_percentile(times, p, seed),
                at=at,
                n=len(samples),
                samples=(samples or None) if p == 50 else None,
                note=CLOSED_LOOP,
            )
            for p, definition in PERCENTILES.items()
        ]
        rate = ratio_of_sums(
            [size * len(block.latency_ns) for block in blocks],
            [(block.wall_ns or sum(block.latency_ns)) / 1e9 for block in blocks],
            seed,
        )
        made.append(reading(THROUGHPUT, broken or rate, at=at, n=len(samples), note=CLOSED_LOOP))
        made.append(self._speedup(seen, size, broken))
        return made

    def _speedup(self, seen: Observations, size: int, broken: Undefined | None) -> Measurement:
        at = timing_point(seen, size)
        pairs = [(base.latency_ns, mine.latency_ns) for base, mine in seen.pairs(size)]
        if broken is None and not pairs:
            broken = Undefined("unpaired: the baseline was not timed beside it")
        ratio = broken or ratio_of_medians(pairs, seen.spec.seed)
        if isinstance(ratio, Undefined):
            return reading(SPEEDUP, ratio, at=at)
        note = paired_note(seen, ratio.interval)
        return reading(SPEEDUP, ratio.value, at=at, interval=ratio.interval, n=ratio.n_pairs, note=note)
