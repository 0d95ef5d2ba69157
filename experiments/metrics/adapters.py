"""Several adapters on one base, against as many merged models: memory, switching, mixed batches, equality."""

from __future__ import annotations

from typing import Any, ClassVar

from experiments.parts.readings import reading
from experiments.protocols import Metric, MetricDefinition, Observations
from experiments.records import Measurement
from experiments.stats import Undefined, block_percentile, ratio_of_medians

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


_TASKS = frozenset({"text-classification", "image-classification", "text-generation"})
_ABSENT = Undefined("the artifact does not hold several adapters")


class AdapterMemory(Metric):
    """What n adapters on one base need, against as many merged models."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (BYTES, MERGED, OF_ONE)
    tasks: ClassVar[frozenset[str]] = _TASKS

    def measure(self, seen: Observations) -> list[Measurement]:
        """One number each."""
        told = seen.adapters
        if not told:
            return [reading(definition, _ABSENT) for definition in self.definitions]
        names, merged, at = told["names"], told["merged_bytes"], _point(told)
        share = told["bytes"] / sum(merged)
        return [
            reading(BYTES, float(told["bytes"]), at=at, note=f"the base and {', '.join(names)}"),
            reading(MERGED, float(sum(merged)), at=at, note=f"the adapters on one base need {share:.1%} of it"),
            reading(OF_ONE, told["bytes"] / max(merged), at=at, note=f"{len(names)} merged models are {len(names)} x"),
        ]


class AdapterLatency(Metric):
    """What switching and mixing adapters takes."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (SWITCH, MIXED, SINGLE, SLOWDOWN)
    tasks: ClassVar[frozenset[str]] = _TASKS

    def measure(self, seen: Observations) -> list[Measurement]:
        """All samples are kept on the medians."""
        told, seed = seen.adapters, seen.spec.seed
        if not told:
            return [reading(definition, _ABSENT) for definition in self.definitions]
        at = _point(told)
        batch = {**at, "batch_size": told["rows"]}
        switches = tuple(ns / _MS for ns in told["switch_ns"])
        mixed, single = ([[ns / _MS for ns in block] for block in told[key]] for key in ("mixed_ns", "single_ns"))
        found = ratio_of_medians(list(zip(mixed, single, strict=True)), seed)
        slower = (
            reading(SLOWDOWN, found, at=batch)
            if isinstance(found, Undefined)
            else reading(SLOWDOWN, found.value, at=batch, interval=found.interval, n=found.n_pairs)
        )
        return [
            reading(SWITCH, block_percentile([[ms] for ms in switches], 50, seed), at=at, samples=switches),
            reading(MIXED, block_percentile(mixed, 50, seed), at=batch, samples=_joined(mixed)),
            reading(SINGLE, block_percentile(single, 50, seed), at=batch, samples=_joined(single)),
            slower,
        ]


class AdapterFidelity(Metric):
    """Whether adapters disturb each other."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (DIFFERENCE,)
    tasks: ClassVar[frozenset[str]] = _TASKS

    def measure(self, seen: Observations) -> list[Measurement]:
        """Over the probe."""
        told = seen.adapters
        if not told:
            return [reading(DIFFERENCE, _ABSENT)]
        note = f"over the probe; against the merged models {told['merged_difference']:.3g}"
        return [reading(DIFFERENCE, told["difference"], at=_point(told), note=note)]


def _point(told: dict[str, Any]) -> dict[str, str | int | float]:
    return {"adapters": len(told["names"])}


def _joined(blocks: list[list[float]]) -> tuple[float, ...]:
    return tuple(value for block in blocks for value in block)
