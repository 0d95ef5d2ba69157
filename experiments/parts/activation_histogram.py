"""How the values of one activation are spread, and the range that a static quantizer should cover."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Method = Literal["minmax", "entropy", "percentile"]
#: Bins over the whole of [-reach, reach]; the reach is a power of two, so wider histograms merge pairs exactly.
BINS = 8192
#: Levels that a quantizer has for magnitudes, and the bins of |x| that thresholds are tried at.
LEVELS, MAGNITUDES = 128, 2048


def _empty() -> npt.NDArray[np.int64]:
    return np.zeros(BINS, np.int64)


@dataclass
class Histogram:
    """Counts of values between ``-reach`` and ``reach``; ``low`` and ``high`` are exact.

    The order in which values are added does not matter.
    """

    low: float = math.inf
    high: float = -math.inf
    reach: float = 0.0
    counts: npt.NDArray[np.int64] = field(default_factory=_empty)

    def add(self, values: npt.NDArray[np.floating]) -> None:
        """Count ``values``, all of them finite."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(abs(low), abs(high), 1e-30)
        needed = 2.0 ** math.ceil(math.log2(largest) + 1e-12)
        if not self.reach:
            self.reach = needed
        while self.reach < needed:
            self._double()
        self.counts += np.histogram(values, BINS, range=(-self.reach, self.reach))[0]

    @property
    def constant(self) -> bool:
        """Whether all values were the same."""
        return self.low == self.high

    def range(self, method: Method, percentile: float) -> tuple[float, float]:
        """(low, high) that the quantizer should cover; values beyond are clipped.

        ``minmax``: all that was seen. ``percentile``: that share of it, cut at both ends alike. ``entropy``: the
        magnitude at which clipping loses least information (Migacz, 8-bit Inference with TensorRT, GTC 2017).
        """
        if method == "minmax" or self.constant:
            return self.low, self.high
        if method == "percentile":
            return self._percentile(percentile)
        threshold = self._entropy_threshold()
        return max(self.low, -threshold), min(self.high, threshold)

    def _double(self) -> None:
        half = self.counts.reshape(-1, 2).sum(axis=1)
        self.counts = _empty()
        self.counts[BINS // 4 : BINS // 4 + len(half)] = half
        self.reach *= 2

    def _percentile(self, percentile: float) -> tuple[float, float]:
        below = np.cumsum(self.counts) / self.counts.sum()
        cut = (100 - percentile) / 200
        edges = np.linspace(-self.reach, self.reach, BINS + 1)
        left = int(np.searchsorted(below, cut, side="right"))
        right = int(np.searchsorted(below, 1 - cut, side="left"))
        low, high = float(edges[min(left, BINS)]), float(edges[min(right + 1, BINS)])
        return max(self.low, low), min(self.high, high)

    def _entropy_threshold(self) -> float:
        """|x| at which KL(clipped || quantized to 128 levels) is smallest."""
        middle = BINS // 2
        magnitudes = self.counts[middle:] + self.counts[:middle][::-1]
        magnitudes = magnitudes.reshape(MAGNITUDES, -1).sum(axis=1).astype(np.float64)
        used = int(np.nonzero(magnitudes)[0][-1]) + 1
        best, threshold = math.inf, used
        for bins in range(LEVELS, max(used, LEVELS) + 1, 8):
            loss = _clipping_loss(magnitudes, bins)
            if loss < best:
                best, threshold = loss, bins
        return self.reach * threshold / MAGNITUDES


def _clipping_loss(magnitudes: npt.NDArray[np.float64], bins: int) -> float:
    """KL divergence between the first ``bins`` bins with what lies beyond in the last, and their 128 level means."""
    kept = magnitudes[:bins]
    clipped = kept.copy()
    clipped[-1] += magnitudes[bins:].sum()
    level = np.arange(bins) * LEVELS // bins
    filled = (clipped > 0).astype(np.float64)
    sums = np.bincount(level, weights=kept, minlength=LEVELS)
    shares = np.bincount(level, weights=filled, minlength=LEVELS)
    coarse = np.where(shares > 0, sums / np.maximum(shares, 1), 0)[level] * filled
    p = clipped / clipped.sum()
    total = coarse.sum()
    if not total:
        return math.inf
    q = coarse / total
    # What the levels can't say at all costs as if it had a ten-thousandth of a bin's share.
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-4 / bins))).sum())
