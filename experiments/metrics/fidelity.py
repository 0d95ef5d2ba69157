"""Fidelity: how much the candidate's outputs differ from the baseline's on the same inputs."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from experiments import stats
from experiments.parts.readings import reading
from experiments.protocols import Metric, MetricDefinition, Observations, Outputs
from experiments.records import Interval, Measurement
from experiments.stats import Divergence, Undefined

_KL = "KL(baseline || candidate) in nats, from float64 log-probabilities, nothing clipped"
_KL_SOURCE = "Kullback & Leibler (1951)."

KL_MEAN = MetricDefinition(
    name="kl_divergence_mean",
    title="KL divergence, mean",
    unit="nats",
    higher_is_better=False,
    definition=f"Mean over examples or tokens of {_KL}.",
    source=_KL_SOURCE,
    group="fidelity",
)
KL_MEDIAN = MetricDefinition(
    name="kl_divergence_median",
    title="KL divergence, median",
    unit="nats",
    higher_is_better=False,
    definition=f"Median over examples or tokens of {_KL}.",
    source=_KL_SOURCE,
    group="fidelity",
)
KL_P99 = MetricDefinition(
    name="kl_divergence_p99",
    title="KL divergence, p99",
    unit="nats",
    higher_is_better=False,
    definition=f"99th percentile over examples or tokens of {_KL}.",
    source=_KL_SOURCE,
    group="fidelity",
)
TOP1 = MetricDefinition(
    name="top1_agreement",
    title="Same first choice",
    unit="share",
    higher_is_better=True,
    definition="Share of examples or tokens where candidate and baseline have the same most likely answer.",
    source="Interval: Wilson (1927).",
    group="fidelity",
)
FLIPS = MetricDefinition(
    name="flips",
    title="Flips",
    unit="share",
    higher_is_better=False,
    definition="(right -> wrong + wrong -> right) / N; accuracy can stay equal while answers change.",
    source="Dutta et al. (2024), Accuracy is Not All You Need. Interval: Wilson (1927).",
    group="fidelity",
)
FLIPS_P = MetricDefinition(
    name="flips_p_value",
    title="McNemar's p of the flips",
    unit="",
    higher_is_better=None,
    definition="Chance of flips at least this one-sided if right -> wrong and wrong -> right were equally likely.",
    source="McNemar (1947), exact two-sided.",
    group="fidelity",
)
COSINE = MetricDefinition(
    name="cosine_to_baseline",
    title="Cosine to the baseline's",
    unit="",
    higher_is_better=True,
    definition="Mean over examples of the cosine between the candidate's and the baseline's embedding.",
    source="Cosine similarity of embeddings (Reimers and Gurevych, arXiv:1908.10084).",
    group="fidelity",
)


class LogitFidelity(Metric):
    """Divergence of probabilities and changed answers."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (KL_MEAN, KL_MEDIAN, KL_P99, TOP1, FLIPS, FLIPS_P)
    tasks: ClassVar[frozenset[str]] = frozenset({"text-classification", "image-classification", "text-generation"})

    def measure(self, seen: Observations) -> list[Measurement]:
        """The baseline's own attempt is compared with itself: KL 0 and no flips."""
        compared = _compared(seen)
        if isinstance(compared, Undefined):
            return [reading(definition, compared) for definition in self.definitions]
        divergence, note = compared
        kl, n = divergence.kl, len(divergence.kl)
        endless = int(np.isinf(kl).sum())
        mean = (
            Undefined(f"infinite: in {endless:,} of {n:,} rows the candidate gives 0 to what the baseline allows")
            if endless
            else stats.mean(kl, _units(seen, n), seen.spec.seed)
        )
        same = divergence.top_p == divergence.top_q
        return [
            reading(KL_MEAN, mean, n=n, note=note),
            reading(KL_MEDIAN, stats.percentile(kl, 50), n=n, interval=_order(seen, kl, 50), note=note),
            reading(KL_P99, stats.percentile(kl, 99), n=n, interval=_order(seen, kl, 99), note=note),
            reading(TOP1, float(same.mean()), n=n, interval=_share_interval(seen, same)),
            *_flips(seen, divergence),
        ]


class EmbeddingFidelity(Metric):
    """Agreement of embeddings."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (COSINE,)
    tasks: ClassVar[frozenset[str]] = frozenset({"feature-extraction"})

    def measure(self, seen: Observations) -> list[Measurement]:
        """A row of zeros has no direction; then the mean is undefined."""
        mine, base = seen.candidate.embeddings, _baseline(seen)
        if mine is None or len(mine) == 0:
            return [reading(COSINE, Undefined("no examples were evaluated"))]
        if base is None or base.embeddings is None:
            return [reading(COSINE, Undefined("the baseline's answers are not there"))]
        if base.embeddings.shape != mine.shape:
            reason = f"the embeddings have different shapes: {base.embeddings.shape} and {mine.shape}"
            return [reading(COSINE, Undefined(reason))]
        cosines = stats.cosine_rows(base.embeddings, mine)
        directionless = int(np.isnan(cosines).sum())
        if directionless:
            reason = f"{directionless:,} of {len(cosines):,} embeddings are all zeros or not finite"
            return [reading(COSINE, Undefined(reason), n=len(cosines))]
        return [reading(COSINE, stats.mean(cosines, _units(seen, len(cosines)), seen.spec.seed), n=len(cosines))]


def _baseline(seen: Observations) -> Outputs | None:
    return seen.candidate if seen.is_baseline and seen.baseline is None else seen.baseline


def _compared(seen: Observations) -> tuple[Divergence, str | None] | Undefined:
    """Row by row divergence, and a note on columns that were cut."""
    mine, base = seen.candidate.logits, _baseline(seen)
    if mine is None or len(mine) == 0:
        return Undefined("no examples were evaluated")
    if base is None or base.logits is None:
        return Undefined("the baseline's answers are not there")
    theirs: npt.NDArray[Any] = base.logits
    if len(theirs) != len(mine):
        return Undefined(f"the baseline answered {len(theirs):,} rows and the candidate {len(mine):,}")
    columns = stats.shared_columns(theirs.shape[1], mine.shape[1], int(seen.pack.get("vocab_size") or 0))
    if isinstance(columns, Undefined):
        return Undefined(f"baseline and candidate can't be compared: {columns.reason}")
    theirs, mine = theirs[:, : columns.width], mine[:, : columns.width]
    divergence = stats.logits_divergence(theirs, mine)
    broken = int(np.isnan(divergence.kl).sum())
    if broken:
        return Undefined(f"{broken:,} of {len(mine):,} rows are not finite")
    return divergence, columns.note


def _flips(seen: Observations, divergence: Divergence) -> list[Measurement]:
    targets = seen.candidate.targets
    if targets is None or len(targets) != len(divergence.kl):
        unknown = Undefined("the right answers are not known")
        return [reading(FLIPS, unknown), reading(FLIPS_P, unknown)]
    before, after = divergence.top_p == targets, divergence.top_q == targets
    lost, gained, n = int((before & ~after).sum()), int((~before & after).sum()), len(targets)
    interval = _share_interval(seen, before != after)
    p = stats.mcnemar(gained, lost)
    note = f"{lost:,} right -> wrong, {gained:,} wrong -> right; McNemar's p = {p:.3g}"
    return [
        reading(FLIPS, (lost + gained) / n, n=n, interval=interval, note=note),
        reading(FLIPS_P, p, n=n, note=note),
    ]


def _order(seen: Observations, values: npt.NDArray[np.float64], p: float) -> Interval | None:
    """Order statistics, for independent examples; tokens of a text are not."""
    return None if seen.task == "text-generation" else stats.percentile_interval(values, p)


def _share_interval(seen: Observations, holds: npt.NDArray[np.bool_]) -> Interval:
    """Wilson's interval; for tokens, widened by resampling whole windows, since neighbours are alike."""
    wilson = stats.proportion(int(holds.sum()), len(holds))
    if seen.task != "text-generation":
        return wilson
    resampled = stats.mean(holds.astype(np.float64), _units(seen, len(holds)), seen.spec.seed)
    if isinstance(resampled, Undefined) or resampled.interval is None:
        return wilson
    return Interval(
        low=min(wilson.low, resampled.interval.low),
        high=max(wilson.high, resampled.interval.high),
        method=f"{resampled.interval.method}, at least {wilson.method}",
    )


def _units(seen: Observations, n: int) -> npt.NDArray[np.int64]:
    """What is resampled: whole windows of neighbouring tokens; examples one by one (in at most 1,000 groups)."""
    if seen.task != "text-generation":
        return np.arange(n, dtype=np.int64) // -(-n // 1000)
    left, lengths = n, []
    for length in seen.pack.get("window_tokens") or []:
        lengths.append(min(int(length), left))
        left -= lengths[-1]
        if left == 0:
            break
    return stats.windows(n, lengths)
