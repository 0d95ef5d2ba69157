"""How far one set of outputs lies from another: KL divergence, top choices, cosine; all in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.stats.undefined import Undefined

#: Values of one side held in float64 at a time (8 MiB).
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Divergence:
    """Row by row comparison of reference p and candidate q.

    Attributes:
        kl: (N,) KL(p || q) in nats; infinite where q gives 0 to what p allows, NaN where a row is not a distribution.
        top_p: (N,) index of the largest logit of p.
        top_q: (N,) the same of q.
    """

    kl: npt.NDArray[np.float64]
    top_p: npt.NDArray[np.int64]
    top_q: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Which columns of two outputs stand for the same thing.

    Attributes:
        width: the first columns, of both.
        note: what was cut and why, or None where nothing was.
    """

    width: int
    note: str | None


def shared_columns(one: int, other: int, vocabulary: int) -> Columns | Undefined:
    """The columns on which two outputs of widths ``one`` and ``other`` can be compared.

    Models of one family pad their vocabulary to different widths; the columns beyond the tokenizer's ``vocabulary``
    stand for no token. They are cut on both sides, and probabilities over the rest are renormalised. The same rule
    serves the metrics of fidelity and distillation.
    """
    if one == other:
        return Columns(one, None)
    widths = f"{one:,} and {other:,}"
    if not 0 < vocabulary <= min(one, other):
        return Undefined(f"they have different outputs: {widths} columns")
    return Columns(
        vocabulary, f"columns beyond the tokenizer's {vocabulary:,} were cut ({widths}) and probabilities renormalised"
    )


def log_softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Log-probabilities along the last axis, in float64; -inf logits stay -inf."""
    x = np.asarray(logits, dtype=np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def logits_divergence(p: npt.NDArray[np.floating], q: npt.NDArray[np.floating]) -> Divergence:
    """KL(p || q) = sum p log(p / q) of each row, from logits or log-probabilities of shape (N, K).

    ``p`` is the reference (the baseline). Rows are read in chunks, so memory maps of any size are fine. Nothing is
    clipped, so rare tokens count fully.

    Source: Kullback & Leibler (1951).

    Raises:
        ValueError: the shapes differ.
    """
    if p.shape != q.shape or p.ndim != 2:
        raise ValueError(f"the outputs have different shapes: {p.shape} and {q.shape}")
    n, width = p.shape
    kl = np.empty(n, dtype=np.float64)
    top_p, top_q = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    step = max(1, _CHUNK // max(1, width))
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        x, y = np.asarray(p[rows]), np.asarray(q[rows])
        top_p[rows], top_q[rows] = x.argmax(axis=1), y.argmax(axis=1)
        with np.errstate(invalid="ignore", over="ignore"):
            log_p, log_q = log_softmax(x), log_softmax(y)
            weight = np.exp(log_p)
            terms = np.where(weight > 0, weight * (log_p - log_q), 0.0)
            terms[np.isnan(log_p) | np.isnan(log_q)] = np.nan
            kl[rows] = terms.sum(axis=1)
    return Divergence(np.maximum(kl, 0.0), top_p, top_q)


def cosine_rows(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Cosine of each row of ``a`` with the same row of ``b``, both (N, width); NaN where a row is all zeros."""
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(f"the embeddings have different shapes: {a.shape} and {b.shape}")
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.clip(np.einsum("nw,nw->n", x, y) / norms, -1.0, 1.0))
