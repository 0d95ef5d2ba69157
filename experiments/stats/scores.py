"""Scores of a task that are no plain means: macro F1, Spearman, bits per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from experiments.records import Interval
from experiments.stats.bootstrap import Estimate, expanded_bounds, mean, windows
from experiments.stats.distributions import normal_quantile
from experiments.stats.percentiles import Samples
from experiments.stats.undefined import Undefined


def f1_macro(
    predicted: npt.NDArray[np.integer], targets: npt.NDArray[np.integer], seed: int = 0
) -> Estimate | Undefined:
    """Unweighted mean over the classes of F1 = 2 TP / (2 TP + FP + FN), over classes in targets or predictions.

    The 95 % interval resamples examples. Undefined if the targets hold one class only: it would say nothing of telling
    classes apart.
    """
    predicted, targets = np.asarray(predicted), np.asarray(targets)
    present = np.unique(targets)
    if len(present) == 0:
        return Undefined("no examples")
    if len(present) == 1:
        return Undefined(f"the examples hold one class only (class {int(present[0])})")
    classes = np.union1d(present, predicted)
    pairs, counts = np.unique(
        np.stack([np.searchsorted(classes, targets), np.searchsorted(classes, predicted)]), axis=1, return_counts=True
    )
    value = float(_f1(counts[None], pairs, len(classes))[0])
    if len(targets) < 2:
        return Estimate(value, None, 1)
    drawn = np.random.default_rng(seed).multinomial(len(targets), counts / len(targets), size=1000)
    low, high = expanded_bounds(_f1(drawn, pairs, len(classes)), len(targets))
    interval = Interval(low=low, high=high, method=f"bootstrap over {len(targets):,} examples")
    return Estimate(value, interval, len(targets))


def _f1(counts: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64], k: int) -> npt.NDArray[np.float64]:
    """Macro F1 of each row of ``counts`` (R, P), how often each (target, prediction) of ``pairs`` (2, P) occurs."""
    hits, seen = np.zeros((k, len(counts))), np.zeros((k, len(counts)))
    np.add.at(seen, pairs[0], counts.T)
    np.add.at(seen, pairs[1], counts.T)
    right = pairs[0] == pairs[1]
    np.add.at(hits, pairs[0][right], counts.T[right])
    there = seen > 0
    scores = np.divide(2 * hits, seen, out=np.zeros_like(seen), where=there)
    return np.asarray(scores.sum(axis=0) / there.sum(axis=0))


def spearman(a: Samples, b: Samples) -> Estimate | Undefined:
    """Rank correlation of two columns, ties given their mean rank, with a 95 % interval from 4 examples on.

    Source: Spearman (1904): Pearson's correlation of the ranks. Interval: Bonett & Wright (2000), Fisher's z with
    standard error sqrt((1 + r^2 / 2) / (n - 3)).
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.size != y.size:
        return Undefined(f"{x.size:,} predictions for {y.size:,} scores")
    if x.size < 3:
        return Undefined(f"a rank correlation needs at least 3 examples, there are {x.size}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return Undefined("some values are not finite")
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        which = "predictions" if np.ptp(x) == 0 else "scores"
        return Undefined(f"all {which} are equal, so there are no ranks to compare")
    r = float(np.clip(np.corrcoef(_ranks(x), _ranks(y))[0, 1], -1, 1))
    if x.size == 3 or abs(r) > 1 - 1e-12:
        return Estimate(r, None, x.size)
    half = normal_quantile(0.975) * math.sqrt((1 + r * r / 2) / (x.size - 3))
    z = math.atanh(r)
    interval = Interval(
        low=math.tanh(z - half), high=math.tanh(z + half), method=f"Fisher z (Bonett & Wright), {x.size:,} pairs"
    )
    return Estimate(r, interval, x.size)


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[inverse])


def bits_per_byte(
    log_probs: Samples, n_bytes: int, lengths: Sequence[int] | None = None, seed: int = 0
) -> Estimate | Undefined:
    """-sum log p / (n_bytes ln 2) over all scored tokens (nats); unlike perplexity independent of the tokenizer.

    The interval is that of the mean log probability over whole windows (see :func:`experiments.stats.windows`).
    """
    data = -np.asarray(log_probs, dtype=np.float64)
    if n_bytes <= 0:
        return Undefined("the number of bytes of the scored text is not known")
    nats = mean(data, windows(data.size, lengths), seed)
    if isinstance(nats, Undefined):
        return nats
    scale = data.size / (n_bytes * math.log(2))
    interval = nats.interval and Interval(
        low=nats.interval.low * scale, high=nats.interval.high * scale, method=nats.interval.method
    )
    return Estimate(nats.value * scale, interval, nats.n)
