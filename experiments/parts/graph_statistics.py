"""What flows through an ONNX graph on calibration rows: the spread of some of its values, and of their channels."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from experiments.parts.activation_histogram import Histogram
from experiments.parts.calibration_score import BATCH, calibration_rows, rows_in_words
from experiments.parts.encoded_rows import EncodedRows
from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind

#: Tokens of one window of running text.
WINDOW = 128


@dataclass(frozen=True)
class GraphStatistics:
    """Of each value that was looked at.

    Attributes:
        histograms: how all its elements are spread.
        channels: (width,) largest magnitude along its last axis.
        rows: on what, in words.
        distinct: how many of the rows differ from each other.
        count: rows.
    """

    histograms: dict[str, Histogram]
    channels: dict[str, npt.NDArray[np.float32]]
    rows: str
    distinct: int
    count: int

    def warnings(self) -> tuple[str, ...]:
        """What a reader must know of the calibration (FC-075)."""
        said = []
        if self.count > 1 and self.distinct == 1:
            said.append(f"calibration has no variety: all {self.count:,} rows are alike")
        constant = [name for name, histogram in self.histograms.items() if histogram.constant]
        if constant:
            said.append(
                f"calibration has no variety: {len(constant)} of {len(self.histograms)} activations never change, "
                f"first {constant[0]}"
            )
        return tuple(said)


def graph_statistics(
    source: Path, values: Collection[str], rows: int, kind: Mapping[str, Any], context: BuildContext
) -> GraphStatistics:
    """Run ``source`` over at most ``rows`` calibration rows and look at ``values``.

    Rows go in batches of exactly equal length, so no padding is in the statistics; decoders get an empty cache. Kept
    (``remember``) for all that ask for the same: ``kind`` says what else, besides the model so far, determines the
    graph and the values.

    Raises:
        ExperimentError: ``bad_dataset`` if there are no rows, ``canary`` naming a value that is not finite.
    """

    def make(folder: Path) -> None:
        encoded = calibration_rows(context, rows, WINDOW)
        if encoded.pixels is not None and len(encoded) > rows:
            encoded = EncodedRows(pixels=encoded.pixels[:rows])
        _save(collect(source, values, encoded, context), folder)

    key = {"rows": rows, "window": WINDOW, "version": 1, **kind}
    return _loaded(context.remember("ranges", key, make))


def equal_batches(rows: EncodedRows) -> Iterator[list[int]]:
    """Row indices of batches of at most 16 rows that all have the same number of tokens: nothing is padded."""
    groups: dict[int, list[int]] = {}
    for row in range(len(rows)):
        groups.setdefault(len(rows.tokens[row]) if rows.pixels is None else 0, []).append(row)
    for length in sorted(groups):
        for start in range(0, len(groups[length]), BATCH):
            yield groups[length][start : start + BATCH]


def collect(source: Path, values: Collection[str], encoded: EncodedRows, context: BuildContext) -> GraphStatistics:
    """Run ``source`` over all rows of ``encoded`` and look at ``values``. Raises as :func:`graph_statistics`."""
    from experiments.parts.onnx_probe import complete_inputs, empty_past

    session, named = _watching(source, values, context)
    histograms = {name: Histogram() for name in values}
    channels: dict[str, npt.NDArray[np.float32]] = {}
    batches = list(equal_batches(encoded))
    started = time.monotonic()
    for number, batch in enumerate(batches):
        inputs = complete_inputs(session, encoded.batch(batch))
        feeds = {**empty_past(session, len(batch)), **inputs}
        values_seen = session.run(named, feeds) if named else []  # an empty list would ask for all outputs
        for name, value in zip(named, values_seen, strict=True):
            _look(name, value, histograms[name], channels)
        for name in values:
            if name in inputs:
                _look(name, inputs[name], histograms[name], channels)
        left = (time.monotonic() - started) / (number + 1) * (len(batches) - number - 1)
        context.progress((number + 1) / len(batches) / 2, f"calibration: batch {number + 1} of {len(batches)}", left)
    rows_seen = (
        {tuple(tokens) for tokens in encoded.tokens}
        if encoded.pixels is None
        else {pixels.tobytes() for pixels in encoded.pixels}
    )
    return GraphStatistics(histograms, channels, rows_in_words(encoded), len(rows_seen), len(encoded))


def _look(name: str, value: npt.NDArray[Any], histogram: Histogram, channels: dict[str, npt.NDArray[Any]]) -> None:
    wide = value.astype(np.float32, copy=False)
    if not np.isfinite(wide).all():
        raise ExperimentError(
            FailureKind.CANARY,
            f"{name} is not finite on the calibration rows",
            fix="The model itself overflows on this data; look at its float32 run first.",
            node=name,
        )
    histogram.add(wide)
    largest = np.abs(wide).reshape(-1, wide.shape[-1]).max(axis=0) if wide.ndim else np.abs(wide).reshape(1)
    known = channels.get(name)
    # A last axis that changes its length from batch to batch (a sequence) has no channels.
    channels[name] = largest if known is None or known.shape != largest.shape else np.maximum(known, largest)


def _watching(source: Path, values: Collection[str], context: BuildContext) -> tuple[Any, list[str]]:
    """A session of ``source`` that gives ``values`` (but graph inputs) as outputs, and their names."""
    from experiments.parts.onnx_graph import LIMIT, load_graph, save_graph, weights_bytes
    from experiments.parts.onnx_probe import open_quietly

    model = load_graph(source)
    inputs = {slot.name for slot in model.graph.input}
    named = [name for name in values if name not in inputs]
    there = {slot.name for slot in model.graph.output}
    for name in named:
        if name not in there:
            model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    if weights_bytes(source) <= LIMIT:
        return open_quietly(model.SerializeToString(), context.threads), named
    folder = context.work / "watched"
    folder.mkdir(parents=True, exist_ok=True)
    save_graph(model, folder / "watched.onnx")
    return open_quietly(folder / "watched.onnx", context.threads), named


def _save(found: GraphStatistics, folder: Path) -> None:
    names = list(found.histograms)
    arrays: dict[str, npt.NDArray[Any]] = {f"counts_{n}": found.histograms[name].counts for n, name in enumerate(names)}
    arrays |= {f"channels_{n}": found.channels[name] for n, name in enumerate(names)}
    ends = np.array([(h.low, h.high, h.reach) for h in found.histograms.values()], np.float64).reshape(-1, 3)
    about = np.array([found.distinct, found.count], np.int64)
    np.savez_compressed(
        folder / "statistics.npz",
        names=np.array(names, dtype=np.str_),
        ends=ends,
        about=about,
        rows=np.array(found.rows),
        **arrays,  # type: ignore[arg-type]  # numpy's stub takes its own flags for these
    )


def _loaded(folder: Path) -> GraphStatistics:
    with np.load(folder / "statistics.npz", allow_pickle=False) as saved:
        names = [str(name) for name in saved["names"]]
        histograms = {}
        for n, name in enumerate(names):
            low, high, reach = map(float, saved["ends"][n])
            histograms[name] = Histogram(low, high, reach, saved[f"counts_{n}"])
        channels = {name: saved[f"channels_{n}"] for n, name in enumerate(names)}
        distinct, count = map(int, saved["about"])
        return GraphStatistics(histograms, channels, str(saved["rows"]), distinct, count)
