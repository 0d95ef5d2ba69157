"""Memory, each number saying whose it is."""

from __future__ import annotations

from typing import ClassVar

from experiments.parts.readings import reading
from experiments.protocols import Metric, MetricDefinition, Observations
from experiments.records import Measurement
from experiments.stats import Undefined


def _bytes(name: str, title: str, definition: str) -> MetricDefinition:
    return MetricDefinition(
        name=name, title=title, unit="bytes", higher_is_better=False, definition=definition, group="memory"
    )


RSS = _bytes(
    "rss_tree_peak_bytes",
    "Peak memory of the process",
    "Peak resident memory of the candidate's fresh measured process and all its children.",
)
WEIGHTS = _bytes(
    "weights_bytes",
    "Weights in memory",
    "Bytes of the unique weight storages held in memory; tied weights count once.",
)
ALLOCATED = _bytes(
    "torch_peak_allocated_bytes",
    "Peak GPU memory of tensors",
    "Peak bytes in tensors on the GPU, by torch's caching allocator.",
)
RESERVED = _bytes(
    "torch_peak_reserved_bytes",
    "Peak GPU memory reserved",
    "Peak bytes that torch's caching allocator took from the GPU.",
)
NVML = _bytes(
    "nvml_process_peak_bytes",
    "GPU memory of the process",
    "GPU memory of the measured process as the driver counts it, context and libraries included.",
)


class Memory(Metric):
    """Peaks of the candidate's own process; what could not be read is missing with its reason, never 0."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (RSS, WEIGHTS, ALLOCATED, RESERVED, NVML)

    def measure(self, seen: Observations) -> list[Measurement]:
        """One number each, independent of the batch size (the peak over all of them)."""
        on_gpu = seen.spec.resources.device == "cuda"
        absent = "the runtime does not tell" if on_gpu else "it ran on the CPU, so there is no GPU memory"
        driver = "the driver does not tell" if on_gpu else absent
        children = seen.memory.get("children")
        tree = "the measured process alone; it has no children"
        if children:
            tree = f"sum over the measured process and its {children} children; pages they share count in each"
        return [
            _one(
                RSS,
                seen.memory.get("rss_tree_peak"),
                "the peak could not be read",
                note=tree if children is not None else None,
            ),
            _one(WEIGHTS, seen.weights_bytes, "the runtime can't tell its weights' storages"),
            _one(ALLOCATED, seen.memory.get("torch_peak_allocated"), absent),
            _one(RESERVED, seen.memory.get("torch_peak_reserved"), absent),
            _one(NVML, seen.memory.get("nvml_process_peak"), driver),
        ]


def _one(definition: MetricDefinition, value: int | None, reason: str, note: str | None = None) -> Measurement:
    return reading(definition, Undefined(reason) if not value else float(value), note=note)
