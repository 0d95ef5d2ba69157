"""Size of what would be deployed, from the disk."""

from __future__ import annotations

from typing import ClassVar

from experiments.parts.readings import reading
from experiments.protocols import Metric, MetricDefinition, Observations
from experiments.records import Label, Measurement
from experiments.stats import Undefined

ARTIFACT = MetricDefinition(
    name="artifact_bytes",
    title="Size on disk",
    unit="bytes",
    higher_is_better=False,
    definition="Bytes of the artifact's weight files on disk, external data included.",
    group="size",
)
RATIO = MetricDefinition(
    name="size_ratio",
    title="Size to the baseline's",
    unit="x",
    higher_is_better=False,
    definition="Size on disk of the candidate over that of the baseline; below 1 is smaller.",
    group="size",
)
BITS = MetricDefinition(
    name="bits_per_weight",
    title="Bits per weight",
    unit="bits",
    higher_is_better=False,
    definition="8 x bytes of weights, scales and zero points on disk over the number of parameters.",
    group="size",
)
PARAMETERS = MetricDefinition(
    name="parameters",
    title="Parameters",
    unit="parameters",
    higher_is_better=False,
    definition="Parameters of the model; tied ones count once.",
    group="size",
)
SPARSITY = MetricDefinition(
    name="sparsity",
    title="Zero weights",
    unit="share",
    higher_is_better=None,
    definition="Zero weights over all weights that are stored; removed parameters are not among them.",
    group="size",
)


class Size(Metric):
    """Bytes, bits per weight, parameters and zeros of the artifact."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (ARTIFACT, RATIO, BITS, PARAMETERS, SPARSITY)

    def measure(self, seen: Observations) -> list[Measurement]:
        """Sizes come from the disk, never from a formula."""
        mine, base = seen.artifact, seen.artifact if seen.is_baseline else seen.baseline_artifact
        ratio = mine.bytes / base.bytes if base and base.bytes else Undefined("the baseline could not be built")
        bits = 8 * mine.bytes / mine.parameters if mine.parameters else Undefined("the artifact has no parameters")
        zeros = seen.work.get("zeros")
        share = (
            Undefined("zero weights were not counted in this artifact")
            if zeros is None or not mine.parameters
            else zeros / mine.parameters
        )
        wide = mine.label in {Label.MASKED_SPARSE, Label.FAKE_QUANT}
        note = f"{mine.label.value}: stored as wide as before" if wide else mine.label.value
        return [
            reading(ARTIFACT, float(mine.bytes), note=note),
            reading(RATIO, ratio),
            reading(BITS, bits, note="over the whole weight files, headers and graph included"),
            reading(PARAMETERS, float(mine.parameters)),
            reading(SPARSITY, share),
        ]
