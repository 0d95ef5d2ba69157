"""What the textbook claims beside what was measured here: one row for each experiment with a recipe. Pure, torch-free.

A claim *holds* or *fails here* only where the measured interval says so: all of it on one side of the claim's nearer
end. Sizes are counted, so they have no interval. Of several steps the claims multiply (speed, size) or add (loss).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from experiments import catalog
from experiments.numbers import significant
from experiments.parts.shortfalls import no_units
from experiments.protocols import Aspect, Technique
from experiments.records import Label, Measurement, Report, StudyReport
from experiments.verdict import COMPARED, SCORES, SPEED, at_batch, first_batch

Outcome = Literal["holds", "fails here", "can't tell", "no claim", "not measured"]
ASPECTS: tuple[Aspect, ...] = ("latency", "size", "quality")

#: A file also holds a header, norms and biases: as much of a claimed size may be missed and still be the claim.
SIZE_SLACK = 0.03
#: Closer to 1 than this is as before.
UNCHANGED = 0.03
#: Of a request to an experiment, relative to one to the baseline; the first one that both have is shown.
COSTS = ("cost_per_1k_requests_usd", "cost_per_1m_tokens_usd")


@dataclass(frozen=True)
class Cell:
    """One claim beside one number.

    ``claim``: in words; ``low``..``high`` of ``measured`` where there is an interval. ``latency`` is in times faster
    than the baseline, ``size`` in times smaller, ``quality`` in the share of the task score that is lost.
    ``why``: one sentence where the claim fails here.
    """

    aspect: Aspect
    claim: str
    outcome: Outcome
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """The measured number with its interval."""
        if self.measured is None:
            return "not measured"
        if self.aspect == "quality":
            shown = _loss(self.measured)
            if self.low is not None and self.high is not None:
                shown += f" [{significant(100 * self.low)}, {significant(100 * self.high)}] %"
            return shown
        word = {"latency": ("faster", "slower"), "size": ("smaller", "larger")}[self.aspect]
        text = f"{significant(self.measured)}x"
        if self.low is not None and self.high is not None:
            return f"{text} [{significant(self.low)}, {significant(self.high)}]"
        return f"{text} {word[0]}" if self.measured >= 1 else f"{significant(1 / self.measured)}x {word[1]}"


@dataclass(frozen=True)
class Row:
    """An experiment: its techniques, a cell for each aspect, and its cost and memory relative to the baseline's."""

    experiment: str
    techniques: tuple[str, ...]
    cells: tuple[Cell, ...]
    cost_claim: str  # what the claimed speed would cost, since a request costs its time
    cost: float | None
    memory: float | None
    note: str

    def cell(self, aspect: Aspect) -> Cell:
        """The cell of ``aspect``."""
        return next(cell for cell in self.cells if cell.aspect == aspect)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why claims fail here, each sentence once."""
        return tuple(dict.fromkeys(cell.why for cell in self.cells if cell.why))


def rows(study: StudyReport, batch: int | None = None) -> tuple[Row, ...]:
    """A row for each experiment that succeeded and whose recipe the textbook says something of."""
    batch = batch if batch is not None else first_batch(study)
    baseline = next((r for r in study.experiments if r.experiment == study.baseline), None)
    made = []
    for report in study.experiments:
        steps = techniques_of(report)
        if report.status == "succeeded" and report.experiment != study.baseline and any(_says(s) for s in steps):
            made.append(_row(report, steps, baseline, study, batch))
    return tuple(made)


def sentences(study: StudyReport) -> tuple[str, ...]:
    """One line for each experiment in which a claim fails: what was claimed, what was measured, and why."""
    lines = []
    for row in rows(study):
        failed = [cell for cell in row.cells if cell.outcome == "fails here"]
        if failed:
            parts = "; ".join(f"{cell.claim} claimed, {cell.text} here" for cell in failed)
            lines.append(f"textbook, {row.experiment}: {parts}. {' '.join(row.reasons)}".rstrip())
    return tuple(lines)


def techniques_of(report: Report) -> tuple[Technique, ...]:
    """The steps of the report's recipe; those that this version does not know are left out."""
    known = catalog.plugins("technique")
    steps: list[Technique] = []
    for data in (report.spec.get("variant") or {}).get("recipe") or ():
        config = known.get(str(data.get("technique")))
        try:
            if config is not None:
                steps.append(config.model_validate(data))
        except ValidationError:
            continue  # written by another version: its settings mean something else
    return tuple(steps)


def _says(step: Technique) -> bool:
    book = step.textbook
    return any((book.latency, book.size, book.quality))


def _row(
    report: Report, steps: Sequence[Technique], baseline: Report | None, study: StudyReport, batch: int | None
) -> Row:
    speed = at_batch(report, SPEED, batch)
    size = report.find("size_ratio")
    cells = (
        _latency(report, steps, speed),
        _size(report, steps, size),
        _quality(report, steps, baseline),
    )
    return Row(
        experiment=report.experiment,
        techniques=tuple(step.title or step.technique for step in steps),
        cells=cells,
        cost_claim=_cost_claim(_product([step.textbook.speedup for step in steps])),
        cost=next((r for name in COSTS if (r := _relative(report, baseline, name, batch)) is not None), None),
        memory=_relative(report, baseline, "rss_tree_peak_bytes", batch),
        note=_runtime_note(report, study, batch),
    )


def _latency(report: Report, steps: Sequence[Technique], found: Measurement | None) -> Cell:
    claimed = _product([step.textbook.speedup for step in steps])
    claim = _times(claimed, "faster") or _words(step.textbook.latency for step in steps)
    if found is None or found.value is None:
        return Cell("latency", claim, "not measured")
    interval = found.interval
    low, high = (interval.low, interval.high) if interval else (None, None)
    return _judged(report, steps, Cell("latency", claim, "no claim", found.value, low, high), claimed)


def _size(report: Report, steps: Sequence[Technique], found: Measurement | None) -> Cell:
    claimed = _product([step.textbook.shrink for step in steps])
    claim = _times(claimed, "smaller") or _words(step.textbook.size for step in steps)
    if found is None or not found.value:
        return Cell("size", claim, "not measured")
    cell = Cell("size", claim, "no claim", 1 / found.value)
    needed = (claimed[0] * (1 - SIZE_SLACK), claimed[1]) if claimed else None
    return _judged(report, steps, cell, needed, counted=True)


def _quality(report: Report, steps: Sequence[Technique], baseline: Report | None) -> Cell:
    losses = [step.textbook.loss for step in steps if step.textbook.loss is not None]
    claimed = (sum(low for low, _ in losses), sum(high for _, high in losses)) if losses else None
    claim = _loss_claim(claimed) or _words(step.textbook.quality for step in steps)
    measured = loss(report, baseline)
    if measured is None:
        return Cell("quality", claim, "not measured")
    value, low, high = measured
    cell = Cell("quality", claim, "no claim", value, low, high)
    if claimed is None:
        return cell
    # A loss holds while it is small: the same rule as for gains, with the sign turned.
    ends = (-high, -low) if low is not None and high is not None else (None, None)
    outcome = _outcome(-claimed[1], *ends)
    return _with(cell, outcome, _why("quality", report, steps) if outcome == "fails here" else "")


def loss(report: Report, baseline: Report | None) -> tuple[float, float | None, float | None] | None:
    """The share of the baseline's task score that is lost, and its paired interval; None without two scores."""
    if baseline is None:
        return None
    for metric, higher in SCORES.items():
        mine, theirs = report.find(metric), baseline.find(metric)
        if mine is None or theirs is None or mine.value is None or not theirs.value:
            continue
        value = (theirs.value - mine.value) / theirs.value * (1 if higher else -1)
        compared = report.find(COMPARED[metric][0]) if metric in COMPARED else None
        if compared is None or compared.interval is None:
            return value, None, None
        if higher:  # a difference of scores, candidate minus baseline
            return value, -compared.interval.high / theirs.value, -compared.interval.low / theirs.value
        return value, compared.interval.low - 1, compared.interval.high - 1
    return None


def _judged(
    report: Report,
    steps: Sequence[Technique],
    cell: Cell,
    claimed: tuple[float, float] | None,
    *,
    counted: bool = False,
) -> Cell:
    if claimed is None:
        return cell
    ends = (cell.measured, cell.measured) if counted else (cell.low, cell.high)
    # That nothing changes can't be shown to the last digit.
    outcome = _outcome(1.0 - UNCHANGED if claimed[0] == 1.0 else claimed[0], *ends)
    return _with(cell, outcome, _why(cell.aspect, report, steps) if outcome == "fails here" else "")


def _outcome(at_least: float, low: float | None, high: float | None) -> Outcome:
    """Does what lies in ``low``..``high`` reach ``at_least``? More than was claimed is no failure."""
    if low is None or high is None:
        return "can't tell"
    if low >= at_least:
        return "holds"
    return "fails here" if high < at_least else "can't tell"


def _with(cell: Cell, outcome: Outcome, why: str) -> Cell:
    return Cell(cell.aspect, cell.claim, outcome, cell.measured, cell.low, cell.high, why)


def _why(aspect: Aspect, report: Report, steps: Sequence[Technique]) -> str:
    """The technique's own reason, else the general one."""
    for step in reversed(steps):
        if why := step.shortfall(aspect, report):
            return _sentence(why)
    return _sentence({"latency": _why_slow, "size": _why_large, "quality": _why_worse}[aspect](report))


def _why_slow(report: Report) -> str:
    label = report.artifact.label if report.artifact else None
    if label is Label.MASKED_SPARSE:
        return "the zeros are stored and multiplied like any other number: there is no sparse kernel behind this mask"
    if label is Label.FAKE_QUANT:
        return "the values are rounded but stored and multiplied as wide as before"
    if why := no_units(report, report.artifact.dtype) if report.artifact else None:
        return why
    if label is Label.WEIGHT_ONLY:
        return "the weights are stored narrow and widened at each call, so only what waits for memory gets faster"
    return "the claim is of the changed layers alone; everything else in a request takes as long as before"


def _why_large(report: Report) -> str:
    label = report.artifact.label if report.artifact else None
    if label is Label.MASKED_SPARSE:
        return "a mask sets weights to zero and stores them all the same"
    if label is Label.FAKE_QUANT:
        return "the values are rounded and stored as wide as before"
    if kept := sum(len(effect.kept) for effect in report.effects):
        layers = "layer stays" if kept == 1 else "layers stay"
        return f"the claim is of the changed layers; {kept} {layers} as wide as before, and so do the embeddings"
    return "the claim is of the changed layers; embeddings and normalisation are stored as before"


def _why_worse(report: Report) -> str:
    return "this model on this data is more sensitive than those that the claim was made with"


def _runtime_note(report: Report, study: StudyReport, batch: int | None) -> str:
    """What the runtime alone gives, where it is not the baseline's: the number of a technique has it inside."""
    mine, theirs = (_runtime(report, which) for which in ("variant", "baseline"))
    if mine == theirs:
        return ""
    for other in study.experiments:
        variant = other.spec.get("variant") or {}
        if not variant.get("recipe") and _runtime(other, "variant") == mine and other.experiment != study.baseline:
            alone = at_batch(other, SPEED, batch)
            if alone is not None and alone.value is not None:
                return f"of its speed {other.experiment} alone, the runtime without the technique, has {_x(alone)}"
    return f"its speed includes what {mine} alone does, which this study did not measure apart"


def _runtime(report: Report, which: str) -> str:
    runtime: Any = (report.spec.get(which) or {}).get("runtime") or {}
    return str(runtime.get("kind", ""))


def _x(found: Measurement) -> str:
    return f"{significant(found.value)}x"


def _relative(report: Report, baseline: Report | None, metric: str, batch: int | None) -> float | None:
    if baseline is None:
        return None
    mine, theirs = at_batch(report, metric, batch), at_batch(baseline, metric, batch)
    if mine is None or theirs is None or mine.value is None or not theirs.value:
        return None
    return mine.value / theirs.value


def _product(claims: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [claim for claim in claims if claim is not None]
    if not known:
        return None
    low = high = 1.0
    for claim in known:
        low, high = low * claim[0], high * claim[1]
    return low, high


def _times(claimed: tuple[float, float] | None, word: str) -> str:
    if claimed is None:
        return ""
    if claimed == (1.0, 1.0):
        return {"faster": "as fast as before", "smaller": "as large as before"}[word]
    low, high = map(_short, claimed)
    return f"{low}x {word}" if low == high else f"{low}x to {high}x {word}"


def _cost_claim(speedup: tuple[float, float] | None) -> str:
    if speedup is None or speedup == (1.0, 1.0):
        return ""
    low, high = _short(1 / speedup[1]), _short(1 / speedup[0])
    return f"{low}x" if low == high else f"{low}x to {high}x"


def _short(value: float) -> str:
    """A claim's number: two digits, no zeros that nobody claimed."""
    return f"{float(f'{value:.2g}'):g}"


def _loss_claim(claimed: tuple[float, float] | None) -> str:
    if claimed is None:
        return ""
    low, high = (_short(100 * end) for end in claimed)
    if claimed[0] <= 0:
        return f"at most {high} % lost"
    return f"{low} % lost" if low == high else f"{low} to {high} % lost"


def _loss(value: float) -> str:
    return f"{significant(100 * value)} % lost" if value >= 0 else f"{significant(-100 * value)} % gained"


def _words(texts: Any) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""
