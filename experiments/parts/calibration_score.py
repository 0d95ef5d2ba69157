"""Quality of a model on calibration rows, in the unit of ``max_drop``; the same for every form. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.parts.encoded_rows import EncodedRows, encode_rows
from experiments.parts.pooling import pooled
from experiments.protocols import BuildContext, Task
from experiments.records import ExperimentError, FailureKind
from experiments.stats import cosine_rows

#: ``Session.forward``: a model's inputs -> logits or hidden states.
Forward = Callable[[Mapping[str, npt.NDArray[Any]]], npt.NDArray[np.float32]]

#: Rows of one batch; the same as for the rows that quality is judged on, since dynamic ranges span a whole batch.
BATCH = 16
#: Rows that a quality floor is measured on, and for running text the windows and their tokens.
ROWS, WINDOWS, WINDOW = 512, 8, 256
#: Documents that windows are cut from at most.
DOCUMENTS = 256


@dataclass(frozen=True)
class Judged:
    """What one model answers on the rows.

    Attributes:
        value: accuracy, perplexity, or NaN where there is no score without a second model (embeddings).
        answers: (N,) most likely class, (N, width) embeddings, or (N,) log-probabilities of the right tokens.
    """

    value: float
    answers: npt.NDArray[Any]


@dataclass(frozen=True)
class CalibrationScore:
    """Judges models on ``rows`` and says how much one loses against another."""

    rows: EncodedRows
    task: Task

    @property
    def unit(self) -> str:
        """What a loss is measured in, in words."""
        if self.task == "text-generation":
            return "relative perplexity"
        if self.task == "feature-extraction":
            return "1 - mean cosine"
        return "accuracy" if self.rows.labels is not None else "share of changed answers"

    @property
    def where(self) -> str:
        """On how many rows, in words: '512 calibration rows' or '8 calibration windows of 256 tokens'."""
        return rows_in_words(self.rows)

    def judge(self, forward: Forward) -> Judged:
        """Answer all rows, in batches of 16 by length (running text window by window)."""
        answers: list[npt.NDArray[Any]] = []
        order: list[int] = []
        for batch in self.rows.in_order(1 if self.rows.windows else BATCH):
            inputs = self.rows.batch(batch)
            output = forward(inputs)
            answers.append(self._answers(output, inputs, batch))
            order += batch
        joined = np.concatenate(answers)
        if self.rows.windows:
            return Judged(math.exp(min(-float(joined.mean()), 700.0)), joined)
        ordered = np.empty_like(joined)
        ordered[order] = joined
        if self.task == "feature-extraction" or self.rows.labels is None:
            return Judged(math.nan, ordered)
        return Judged(float((ordered == self.rows.labels).mean()), ordered)

    def loss(self, before: Judged, after: Judged) -> float:
        """How much ``after`` lost against ``before`` in :attr:`unit`; negative if it gained, infinite if undefined."""
        if self.task == "text-generation":
            loss = after.value / before.value - 1
        elif self.task == "feature-extraction":
            loss = 1 - float(cosine_rows(before.answers, after.answers).mean())
        elif self.rows.labels is not None:
            loss = before.value - after.value
        else:
            loss = float((before.answers != after.answers).mean())
        return loss if math.isfinite(loss) else math.inf

    def _answers(
        self, output: npt.NDArray[Any], inputs: Mapping[str, npt.NDArray[Any]], batch: list[int]
    ) -> npt.NDArray[Any]:
        if self.rows.windows:
            ids = np.asarray(inputs["input_ids"])[0]
            scores = output[0, :-1].astype(np.float64)
            scores -= scores.max(axis=-1, keepdims=True)
            chosen: npt.NDArray[Any] = scores[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(scores).sum(axis=-1))
            return chosen
        if self.task == "feature-extraction":
            return pooled(output, inputs["attention_mask"])
        broken = ~np.isfinite(output).all(axis=-1)
        top: npt.NDArray[Any] = np.where(broken, -1, output.argmax(axis=-1))  # -1 is no class: never right
        return top


def rows_in_words(rows: EncodedRows) -> str:
    """E.g. '512 calibration rows' or '8 calibration windows of 256 tokens'."""
    if rows.windows:
        plural = "s" if len(rows) > 1 else ""
        return f"{len(rows):,} calibration window{plural} of {len(rows.tokens[0]):,} tokens"
    return f"{len(rows):,} calibration row{'s' if len(rows) > 1 else ''}"


def calibration_rows(context: BuildContext, limit: int, window: int = WINDOW) -> EncodedRows:
    """At most ``limit`` calibration rows, encoded; of running text, at most ``limit`` windows of ``window`` tokens.

    Where the text is too short for one window, windows are halved until one fits.

    Raises:
        ExperimentError: ``bad_dataset`` if there are no rows.
    """
    if context.task != "text-generation":
        return encode_rows(context.rows("calibration", limit), context)
    examples = context.rows("calibration", DOCUMENTS)
    length = min(window, context.facts.max_length or window)
    while True:
        try:
            encoded = encode_rows(examples, context, length=length)
            return EncodedRows(tokens=encoded.tokens[:limit], windows=True, pad=encoded.pad)
        except ExperimentError as error:
            if error.failure.kind is not FailureKind.BAD_DATASET or length < 16:
                raise
            length //= 2
