"""Several adapters on one base, against as many merged models: memory, switching, mixed batches, equality."""

from __future__ import annotations

from typing import ClassVar

from experiments.parts.readings import reading
from experiments.protocols import Metric, MetricDefinition, Observations
from experiments.records import Measurement
from experiments.stats import Ratio, Undefined, block_percentile, ratio_of_medians

_MS = 1e6  # nanoseconds
_LORA = "Hu et al., arXiv:2106.09685, section 4.2; batches that mix adapters: Punica, Chen et al., arXiv:2310.18547."

BYTES = MetricDefinition(
    name="adapters_bytes",
    title="Base and all adapters",
    unit="bytes",
    higher_is_better=False,
    definition="Bytes of the unique storages of the base model and all adapters, as they lie in memory.",
    source=_LORA,
    group="memory",
)
MERGED = MetricDefinition(
    name="adapters_merged_bytes",
    title="As merged models",
    unit="bytes",
    higher_is_better=False,
    definition="Sum of the unique storages of one merged model an adapter.",
    source=_LORA,
    group="memory",
)
OF_ONE = MetricDefinition(
    name="adapters_memory_ratio",
    title="Memory of all adapters against one model",
    unit="x",
    higher_is_better=False,
    definition="Bytes of the base model and all adapters over those of one merged model.",
    source=_LORA,
    group="memory",
)
SWITCH = MetricDefinition(
    name="adapter_switch_ms",
    title="Switch of the adapter",
    unit="ms",
    higher_is_better=False,
    definition="Median time to make another adapter the active one; the next request is not part of it.",
    source=_LORA,
    group="latency",
)
MIXED = MetricDefinition(
    name="adapters_mixed_latency_ms",
    title="Batch that mixes adapters",
    unit="ms",
    higher_is_better=False,
    definition="Median time of a forward pass of a batch whose rows go through all adapters in turn.",
    source=_LORA,
    group="latency",
)
SINGLE = MetricDefinition(
    name="adapters_single_latency_ms",
    title="The same batch through one adapter",
    unit="ms",
    higher_is_better=False,
    definition="Median time of a forward pass of the same batch through one adapter.",
    source=_LORA,
    group="latency",
)
SLOWDOWN = MetricDefinition(
    name="adapters_mixed_slowdown",
    title="Slow-down of a mixed batch",
    unit="x",
    higher_is_better=False,
    definition="Median latency of a batch that mixes all adapters over that of the same batch through one.",
    source="Paired block bootstrap t interval (Efron & Tibshirani 1993; Hesterberg 2015).",
    group="latency",
)
DIFFERENCE = MetricDefinition(
    name="adapters_max_difference",
    title="Answers beside others against alone",
    unit="",
    higher_is_better=False,
    definition="Largest difference between outputs through the shared base (switched or in a mixed batch) and those of "
    "the adapter opened alone on its own copy of the base.",
    source="An adapter must answer the same whichever others lie beside it.",
    group="fidelity",
)


class Adapters(Metric):
    """What n adapters on one base save and cost; told only of artifacts that hold several."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (
        BYTES, MERGED, OF_ONE, SWITCH, MIXED, SINGLE, SLOWDOWN, DIFFERENCE,
    )  # fmt: skip
    tasks: ClassVar[frozenset[str]] = frozenset({"text-classification", "image-classification", "text-generation"})

    def measure(self, seen: Observations) -> list[Measurement]:
        """Nothing for an artifact without several adapters: it has no such numbers."""
        if not seen.adapters:
            return []
        told, seed = seen.adapters, seen.spec.seed
        names, merged = told["names"], told["merged_bytes"]
        at = {"adapters": len(names)}
        batch = {**at, "batch_size": told["rows"]}
        mixed = [[ns / _MS for ns in block] for block in told["mixed_ns"]]
        single = [[ns / _MS for ns in block] for block in told["single_ns"]]
        switches = tuple(ns / _MS for ns in told["switch_ns"])
        whole = told["bytes"] / sum(merged)
        slower = ratio_of_medians(list(zip(mixed, single, strict=True)), seed)
        many = f"{len(names)} adapters ({', '.join(names)})"
        return [
            reading(BYTES, float(told["bytes"]), at=at, note=f"{many} and their base"),
            reading(
                MERGED,
                float(sum(merged)),
                at=at,
                note=f"{len(names)} merged models; the adapters need {whole:.1%} of it",
            ),
            reading(OF_ONE, told["bytes"] / max(merged), at=at, note=f"{len(names)} merged models are {len(names)} x"),
            reading(SWITCH, block_percentile([[ns] for ns in switches], 50, seed), at=at, samples=switches),
            reading(MIXED, block_percentile(mixed, 50, seed), at=batch, samples=tuple(t for b in mixed for t in b)),
            reading(SINGLE, block_percentile(single, 50, seed), at=batch, samples=tuple(t for b in single for t in b)),
            _slowdown(slower, batch),
            reading(
                DIFFERENCE,
                told["difference"],
                at=at,
                note=f"over the probe; against the merged models {told['merged_difference']:.3g}",
            ),
        ]


def _slowdown(ratio: Ratio | Undefined, at: dict[str, int]) -> Measurement:
    if isinstance(ratio, Undefined):
        return reading(SLOWDOWN, ratio, at=at)
    return reading(SLOWDOWN, ratio.value, at=at, interval=ratio.interval, n=ratio.n_pairs)
