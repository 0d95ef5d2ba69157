"""A study as a table: text for a terminal, Markdown for a pull request, CSV for a spreadsheet. Pure and torch-free."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

from experiments import textbook
from experiments.numbers import ratio_text, significant
from experiments.records import Measurement, Report, StudyReport
from experiments.verdict import SCORES, SPEED, at_batch, first_batch, sweet_spot

NONE = "-"

_MIB = 1 / 2**20
_MB = 1e-6


@dataclass(frozen=True)
class _Table:
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def render_text(study: StudyReport) -> str:
    """The table for a terminal, numbers right-aligned; failures and notes below it."""
    table = _table(study)
    cells = [table.headings, *table.rows]
    cells = [tuple(_printable(cell) for cell in row) for row in cells]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.headings))]
    lines = [
        "  ".join(_aligned(cell, width, column) for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    title = _printable(study.name)
    return "\n".join(
        [
            title,
            "",
            *(line.rstrip() for line in lines),
            *([""] if table.notes else []),
            *(_printable(note) for note in table.notes),
        ]
    )


def render_markdown(study: StudyReport) -> str:
    """The table as GitHub-flavoured Markdown, the verdict above it; names can't break out of their cells."""
    table = _table(study)
    align = [":--" if column in (0, 1) else "--:" for column in range(len(table.headings))]
    lines = [f"### {_escaped(study.name)}", ""]
    if study.verdict:
        lines += [_escaped(study.verdict), ""]
    for row in (table.headings, tuple(align), *table.rows):
        cells = row if row == tuple(align) else tuple(_escaped(cell) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    if table.notes:
        lines += ["", *(f"* {_escaped(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


CSV_COLUMNS = (
    "experiment",
    "recipe",
    "runtime",
    "layout",
    "status",
    "metric",
    "batch_size",
    "at",
    "value",
    "unit",
    "low",
    "high",
    "n",
    "reason",
    "note",
)


def render_csv(study: StudyReport) -> str:
    """Every measurement as one line, in full precision; a failed experiment is one line with its reason.

    Text that a spreadsheet would run as a formula is led by an apostrophe; numbers stay numbers.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(CSV_COLUMNS)
    for report in study.experiments:
        variant = report.spec.get("variant") or {}
        head: list[str | float | int | None] = [
            report.experiment,
            _recipe(report),
            str((variant.get("runtime") or {}).get("kind", "")),
            str((variant.get("layout") or {}).get("kind", "")),
            report.status,
        ]
        if report.failure is not None:
            writer.writerow(_safe([*head, "", None, "", None, "", None, None, None, report.failure.message, ""]))
        for m in report.measurements:
            rest = {key: value for key, value in m.at.items() if key != "batch_size"}
            writer.writerow(
                _safe(
                    [
                        *head,
                        m.metric,
                        m.at.get("batch_size"),
                        json.dumps(rest, sort_keys=True) if rest else "",
                        m.value,
                        m.unit,
                        m.interval.low if m.interval else None,
                        m.interval.high if m.interval else None,
                        m.n,
                        m.reason or "",
                        m.note or "",
                    ]
                )
            )
    return out.getvalue()


def neutral(text: str) -> str:
    """``text`` led by an apostrophe if a spreadsheet would read it as a formula."""
    return f"'{text}" if text.lstrip(" ")[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def _safe(cells: Sequence[str | float | int | None]) -> list[str | float | int | None]:
    return [neutral(cell) if isinstance(cell, str) else cell for cell in cells]


# --------------------------------------------------------------------------------------------------- the wide table


def _table(study: StudyReport) -> _Table:
    batch = first_batch(study)
    score = next((name for name in SCORES if any(r.find(name) for r in study.experiments)), None)
    best = sweet_spot(study, batch)
    generation = any(r.find("output_tokens_per_s") for r in study.experiments)
    cost = "cost_per_1m_tokens_usd" if generation else "cost_per_1k_requests_usd"
    headings = ["experiment", "runs as", f"p50 ms{f' (batch {batch})' if batch else ''}", "speed-up [95 %]"]
    if generation:
        headings.append("tokens/s")
    headings += ["memory MiB", "size MB", (score or "quality").replace("_", " "), "fidelity"]
    headings.append("$/1M tokens" if generation else "$/1k requests")
    rows, notes = [], []
    for report in study.experiments:
        mark = " *" if best is not None and report.experiment == best.experiment else ""
        row = [report.experiment + mark, _runs_as(report)]
        if report.status != "succeeded":
            kind = report.failure.kind.value if report.failure else report.status
            row += [report.status] + [NONE] * (len(headings) - 3)
            why = report.failure.message if report.failure else report.status
            notes.append(f"{report.experiment}: {kind}: {why}")
        else:
            speed = at_batch(report, SPEED, batch)
            row += [_cell(at_batch(report, "latency_p50_ms", batch)), ratio_text(speed) if speed else NONE]
            if generation:
                row.append(_cell(at_batch(report, "output_tokens_per_s", batch)))
            row += [
                _cell(at_batch(report, "rss_tree_peak_bytes", batch), _MIB),
                _cell(report.find("artifact_bytes"), _MB),
                _score(report.find(score)) if score else NONE,
                _fidelity(report),
                _cell(at_batch(report, cost, batch)),
            ]
        rows.append(tuple(row))
    if best is not None:
        notes.insert(0, "* sweet spot: the fastest that is proven faster and keeps its quality")
    floor = next((r for r in study.experiments if r.experiment == study.baseline), None)
    noise = at_batch(floor, SPEED, batch) if floor else None
    if noise is not None and noise.interval is not None:
        notes.append(
            f"noise floor: {study.baseline} against itself is {ratio_text(noise)}; speed-ups within it say nothing"
        )
    notes += textbook.sentences(study)
    return _Table(tuple(headings), tuple(rows), tuple(notes))


def _runs_as(report: Report) -> str:
    variant = report.spec.get("variant") or {}
    runtime = str((variant.get("runtime") or {}).get("kind", ""))
    label = report.artifact.label.value if report.artifact else ""
    return " ".join(part for part in (_recipe(report) or "as is", "on", runtime, f"({label})" if label else "") if part)


def _recipe(report: Report) -> str:
    steps = (report.spec.get("variant") or {}).get("recipe") or []
    return " -> ".join(str(step.get("technique", "")) for step in steps)


def _cell(found: Measurement | None, factor: float = 1.0) -> str:
    if found is None:
        return NONE
    return significant(found.value * factor) if found.value is not None else "undefined"


def _score(found: Measurement | None) -> str:
    if found is None:
        return NONE
    if found.value is None:
        return "undefined"
    digits = (lambda v: f"{v:.3f}") if abs(found.value) <= 1 else significant
    text = digits(found.value)
    if found.interval is not None:
        text += f" [{digits(found.interval.low)}, {digits(found.interval.high)}]"
    return text


def _fidelity(report: Report) -> str:
    parts = []
    agreement, divergence, cosine = (
        report.find(n) for n in ("top1_agreement", "kl_divergence_mean", "cosine_to_baseline")
    )
    if agreement is not None and agreement.value is not None:
        parts.append(f"{significant(agreement.value * 100)} % agree")
    if divergence is not None and divergence.value is not None:
        parts.append(f"KL {significant(divergence.value)}")
    if cosine is not None and cosine.value is not None:
        parts.append(f"cosine {significant(cosine.value, 4)}")
    return ", ".join(parts) or NONE


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column in (0, 1) else cell.rjust(width)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _escaped(text: str) -> str:
    """Markdown text that shows as it was written, on one line."""
    flat = " ".join(text.split())
    for mark in ("\\", "|", "`", "*", "_", "[", "]", "#", "~", "!"):
        flat = flat.replace(mark, f"\\{mark}")
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
