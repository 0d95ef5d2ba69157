"""Speed of text generation: first token, time per token, gaps between tokens, tokens per second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from experiments.parts.readings import paired_note, reading, timing_point, without_tokens
from experiments.protocols import Block, Metric, MetricDefinition, Observations
from experiments.records import Measurement
from experiments.stats import Undefined, block_percentile, ratio_of_medians, ratio_of_sums

MS = 1e6  # nanoseconds

TTFT = MetricDefinition(
    name="ttft_ms",
    title="Time to first token",
    unit="ms",
    higher_is_better=False,
    definition="Median time from when a request was scheduled to its first token.",
    group="latency",
)
TPOT = MetricDefinition(
    name="tpot_ms",
    title="Time per output token",
    unit="ms",
    higher_is_better=False,
    definition="Median over requests of (latency - time to first token) / (output tokens - 1).",
    group="latency",
)
ITL = MetricDefinition(
    name="itl_ms",
    title="Gap between tokens",
    unit="ms",
    higher_is_better=False,
    definition="Median over all gaps between one token and the next.",
    group="latency",
)
RATE = MetricDefinition(
    name="output_tokens_per_s",
    title="Output tokens per second",
    unit="tokens/s",
    higher_is_better=True,
    definition="All output tokens over the time of the timed blocks, one call at a time.",
    group="latency",
)
SPEEDUP = MetricDefinition(
    name="speedup_tpot",
    title="Speed-up per token",
    unit="x",
    higher_is_better=True,
    definition="Median time per output token of the baseline over that of the candidate, from alternating blocks.",
    source="Paired block bootstrap t interval (Efron & Tibshirani 1993; Hesterberg 2015).",
    group="latency",
)


def tokens_per_request(block: Block) -> int:
    """Output tokens of each sequence of a block (all requests of a block generate equally many)."""
    requests = block.batch_size * len(block.latency_ns)
    return block.tokens_out // requests if requests else 0


def times_per_token(block: Block) -> list[float]:
    """Time per output token in ms of each request of a block; empty if fewer than two tokens were made."""
    tokens = tokens_per_request(block)
    if tokens < 2:
        return []
    pairs = zip(block.latency_ns, block.ttft_ns, strict=True)
    return [(latency - first) / (tokens - 1) / MS for latency, first in pairs]


class Generation(Metric):
    """Per-token speed at each batch size."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (TPOT, TTFT, ITL, RATE, SPEEDUP)
    tasks: ClassVar[frozenset[str]] = frozenset({"text-generation"})

    def measure(self, seen: Observations) -> list[Measurement]:
        """Raw samples are kept on the time to first token and the time per token."""
        return [m for size in seen.spec.workload.batch_sizes for m in self._at(seen, size)]

    def _at(self, seen: Observations, size: int) -> list[Measurement]:
        at, seed = timing_point(seen, size), seen.spec.seed
        blocks = [b for b in seen.blocks if b.side == "candidate" and b.batch_size == size]
        broken = without_tokens(seen, size) or (None if blocks else Undefined("nothing was timed at this batch size"))
        short = Undefined("fewer than two tokens were generated")

        def median(definition: MetricDefinition, times: Callable[[Block], Sequence[float]], keep: bool) -> Measurement:
            by_block = [times(block) for block in blocks]
            samples = tuple(t for block in by_block for t in block)
            value = broken or (block_percentile(by_block, 50, seed) if samples else short)
            return reading(definition, value, at=at, n=len(samples), samples=(samples or None) if keep else None)

        rate = ratio_of_sums([b.tokens_out for b in blocks], [b.wall_ns / 1e9 for b in blocks], seed)
        return [
            median(TPOT, times_per_token, keep=True),
            median(TTFT, lambda block: [t / MS for t in block.ttft_ns], keep=True),
            median(ITL, lambda block: [t / MS for t in block.token_gaps_ns], keep=False),
            reading(RATE, broken or rate, at=at, n=sum(b.tokens_out for b in blocks)),
            self._speedup(seen, size, broken),
        ]

    def _speedup(self, seen: Observations, size: int, broken: Undefined | None) -> Measurement:
        at = timing_point(seen, size)
        pairs = [(times_per_token(base), times_per_token(mine)) for base, mine in seen.pairs(size)]
        if broken is None and not pairs:
            broken = Undefined("unpaired: the baseline was not timed beside it")
        ratio = broken or ratio_of_medians(pairs, seen.spec.seed)
        if isinstance(ratio, Undefined):
            return reading(SPEEDUP, ratio, at=at)
        note = paired_note(seen, ratio.interval)
        return reading(SPEEDUP, ratio.value, at=at, interval=ratio.interval, n=ratio.n_pairs, note=note)
