"""Quality of sentence embeddings: rank correlation with human scores of text pairs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from experiments import stats
from experiments.parts.readings import reading
from experiments.protocols import Metric, MetricDefinition, Observations
from experiments.records import Measurement
from experiments.stats import Undefined

SPEARMAN = MetricDefinition(
    name="spearman",
    title="Spearman correlation",
    unit="",
    higher_is_better=True,
    definition="Rank correlation between the cosine of each pair's embeddings and the pair's score.",
    source="Spearman (1904). Interval: Bonett & Wright (2000).",
    group="quality",
)


class Spearman(Metric):
    """Semantic textual similarity."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (SPEARMAN,)
    tasks: ClassVar[frozenset[str]] = frozenset({"feature-extraction"})

    def measure(self, seen: Observations) -> list[Measurement]:
        """Embeddings hold all first texts, then all second ones; targets the scores."""
        embeddings, scores = seen.candidate.embeddings, seen.candidate.targets
        if embeddings is None or scores is None or len(scores) == 0:
            return [reading(SPEARMAN, Undefined("the data have no scored pairs of texts"))]
        n = len(scores)
        if len(embeddings) != 2 * n:
            return [reading(SPEARMAN, Undefined(f"{len(embeddings):,} embeddings for {n:,} pairs"), n=n)]
        similarities = stats.cosine_rows(np.asarray(embeddings[:n]), np.asarray(embeddings[n:]))
        return [reading(SPEARMAN, stats.spearman(similarities, scores), n=n)]
