"""Scores of a task that are no plain means: accuracy's count, macro F1, Spearman, bits per byte."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from experiments.stats.percentiles import Samples
from experiments.stats.undefined import Undefined


def accuracy(predicted: npt.NDArray[np.integer], targets: npt.NDArray[np.integer]) -> float | Undefined:
    """Share of examples whose prediction is the target."""
    if len(targets) == 0:
        return Undefined("no examples")
    return float((np.asarray(predicted) == np.asarray(targets)).mean())


def f1_macro(predicted: npt.NDArray[np.integer], targets: npt.NDArray[np.integer]) -> float | Undefined:
    """Unweighted mean over the classes of F1 = 2 TP / (2 TP + FP + FN), over classes in targets or predictions.

    Undefined if the targets hold one class only: it would say nothing of telling classes apart.
    """
    predicted, targets = np.asarray(predicted), np.asarray(targets)
    present = np.unique(targets)
    if len(present) == 0:
        return Undefined("no examples")
    if len(present) == 1:
        return Undefined(f"the examples hold one class only (class {int(present[0])})")
    scores = []
    for label in np.union1d(present, predicted):
        true = int(((predicted == label) & (targets == label)).sum())
        scores.append(2 * true / int((predicted == label).sum() + (targets == label).sum()))
    return float(np.mean(scores))


def spearman(a: Samples, b: Samples) -> float | Undefined:
    """Rank correlation of two columns, ties given their mean rank.

    Source: Spearman (1904): Pearson's correlation of the ranks.
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
    return float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[inverse])


def bits_per_byte(log_probs: Samples, n_bytes: int) -> float | Undefined:
    """-sum log p / (n_bytes ln 2) over all scored tokens (nats); independent of the tokenizer."""
    total = float(np.sum(np.asarray(log_probs, dtype=np.float64)))
    if n_bytes <= 0:
        return Undefined("the number of bytes of the scored text is not known")
    if not math.isfinite(total):
        return Undefined("some log-probabilities are not finite")
    return -total / (n_bytes * math.log(2))
