"""Quality of classification: accuracy, its change against the baseline, and macro F1."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from experiments.parts.readings import reading
from experiments.protocols import Metric, MetricDefinition, Observations, Outputs
from experiments.records import Measurement
from experiments.stats import Undefined, f1_macro, proportion, proportion_difference

ACCURACY = MetricDefinition(
    name="accuracy",
    title="Accuracy",
    unit="share",
    higher_is_better=True,
    definition="Share of examples whose most likely class is the labelled one.",
    source="Interval: Wilson (1927).",
    group="quality",
)
DELTA = MetricDefinition(
    name="accuracy_delta",
    title="Accuracy to the baseline's",
    unit="share",
    higher_is_better=True,
    definition="Accuracy of the candidate less that of the baseline, on the same examples.",
    source="Interval: Agresti & Min (2005), paired proportions.",
    group="quality",
)
F1 = MetricDefinition(
    name="f1_macro",
    title="Macro F1",
    unit="share",
    higher_is_better=True,
    definition="Mean over the classes of 2 TP / (2 TP + FP + FN); undefined if the data hold one class only.",
    source="Sokolova and Lapalme (2009), table 3.",
    group="quality",
)


class Accuracy(Metric):
    """Scores on the evaluation examples."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (ACCURACY, DELTA, F1)
    tasks: ClassVar[frozenset[str]] = frozenset({"text-classification", "image-classification"})

    def measure(self, seen: Observations) -> list[Measurement]:
        """Candidate and baseline answer the same examples in the same order."""
        logits, targets = seen.candidate.logits, seen.candidate.targets
        if logits is None or targets is None or len(targets) == 0:
            missing = Undefined("no labelled examples were evaluated")
            return [reading(definition, missing) for definition in self.definitions]
        mine = _predicted(logits)
        right = mine == np.asarray(targets)
        n = len(right)
        return [
            reading(ACCURACY, float(right.mean()), n=n, interval=proportion(int(right.sum()), n)),
            self._delta(seen, right, np.asarray(targets)),
            self._f1(seen, mine, np.asarray(targets)),
        ]

    def _delta(self, seen: Observations, right: npt.NDArray[np.bool_], targets: npt.NDArray[Any]) -> Measurement:
        base: Outputs | None = seen.candidate if seen.is_baseline and seen.baseline is None else seen.baseline
        if base is None or base.logits is None:
            return reading(DELTA, Undefined("the baseline's answers are not there"))
        if len(base.logits) != len(targets):
            reason = f"the baseline answered {len(base.logits):,} examples and the candidate {len(targets):,}"
            return reading(DELTA, Undefined(reason))
        theirs = _predicted(base.logits) == targets
        gained, lost, n = int((right & ~theirs).sum()), int((~right & theirs).sum()), len(targets)
        return reading(
            DELTA,
            (gained - lost) / n,
            n=n,
            interval=proportion_difference(gained, lost, n),
            note=f"{gained:,} examples became right and {lost:,} wrong",
        )

    def _f1(self, seen: Observations, predicted: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Measurement:
        present = np.unique(targets)
        names = seen.pack.get("classes") or []
        if len(present) == 1 and int(present[0]) < len(names):
            reason = f"the examples hold one class only ({names[int(present[0])]!r})"
            return reading(F1, Undefined(reason), n=len(targets))
        return reading(F1, f1_macro(predicted, targets, seen.spec.seed), n=len(targets))


def _predicted(logits: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.asarray(np.asarray(logits).argmax(axis=1), dtype=np.int64)
