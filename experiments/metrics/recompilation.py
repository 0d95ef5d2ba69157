"""What a compiling runtime spends before it is fast; never part of a latency."""

from __future__ import annotations

from typing import ClassVar

from experiments.parts.readings import reading
from experiments.protocols import Metric, MetricDefinition, Observations
from experiments.records import Measurement
from experiments.stats import Undefined

_SOURCE = "Ansel et al., PyTorch 2, ASPLOS 2024"
SECONDS = MetricDefinition(
    name="compile_s",
    title="Compile time",
    unit="s",
    higher_is_better=False,
    definition="Seconds that the first fresh process spent compiling, from an empty cache, for every shape of the "
    "canary and of the first round of timing; in no latency.",
    source=_SOURCE,
    group="latency",
)
RECOMPILES = MetricDefinition(
    name="recompiles",
    title="Recompilations",
    unit="compilations",
    higher_is_better=False,
    definition="Compilations of code that was compiled before, for a shape that did not fit.",
    source=_SOURCE,
    group="latency",
)
BREAKS = MetricDefinition(
    name="graph_breaks",
    title="Graph breaks",
    unit="breaks",
    higher_is_better=False,
    definition="Places where the compiler handed back to Python, by its own counters.",
    source=_SOURCE,
    group="latency",
)


class Compilation(Metric):
    """Compile time, recompilations and graph breaks of a runtime that compiles."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (SECONDS, RECOMPILES, BREAKS)

    def measure(self, seen: Observations) -> list[Measurement]:
        """One number each; a runtime that does not compile says so."""
        absent = Undefined("this runtime compiles nothing for a shape")
        return [
            reading(definition, seen.compilation.get(definition.name, absent))
            for definition in (SECONDS, RECOMPILES, BREAKS)
        ]
