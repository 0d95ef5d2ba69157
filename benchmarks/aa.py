"""A/A: a model against itself, many times. About 95 % of the 95 % intervals of the ratio should contain 1.

Each run is ``steelyard run`` in a fresh process on a study whose only experiment is its baseline, so every interval
comes from two separate processes of one artifact, as on every study's page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.records import Measurement, StudyReport
from experiments.stats.proportions import proportion


def main(arguments: list[str] | None = None) -> int:
    """Run the A/A study ``--runs`` times and print each interval and the count that contains 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks aa", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--model", default="minilm-reviews", choices=["minilm-reviews", "smollm2-135m", "digits-vit"])
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing per side and batch size")
    parser.add_argument("--json", type=Path, help="write every interval here")
    options = parser.parse_args(arguments)

    console = Console()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.runs):
            started = time.monotonic()
            report = _run(Path(scratch), study(options.model, options.runtime, options.seconds, seed=number))
            for ratio in ratios(report):
                assert ratio.value is not None
                assert ratio.interval is not None
                found.append(
                    {
                        "run": number + 1,
                        "batch_size": ratio.at.get("batch_size"),
                        "ratio": ratio.value,
                        "low": ratio.interval.low,
                        "high": ratio.interval.high,
                        "contains_1": ratio.interval.contains(1.0),
                    }
                )
            console.print(f"run {number + 1} of {options.runs}: {time.monotonic() - started:.0f} s", style="dim")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if not found:
        console.print("no run gave a ratio with an interval")
        return 1
    console.print(intervals_table(found, f"{options.model} on {options.runtime}, {options.seconds:g} s a side"))
    inside = sum(row["contains_1"] for row in found)
    band = proportion(inside, len(found))
    console.print(
        f"{inside} of {len(found)} intervals contain 1 ({inside / len(found):.0%}; 95 % of runs like this one: "
        f"{band.low:.0%} to {band.high:.0%}). Nominal: 95 %."
    )
    return 0


def study(model: str, runtime: str, seconds: float, seed: int) -> dict[str, Any]:
    """A study of one experiment, its own baseline."""
    return {
        "schema_version": 1,
        "name": f"A/A {model}",
        "model": {"source": "demo", "name": model},
        "workload": {"batch_sizes": [1], "sequence_length": 64, "new_tokens": 8, "min_seconds": seconds},
        "baseline": "same",
        "experiments": [{"name": "same", "runtime": runtime}],
        "seed": seed,
    }


def ratios(report: StudyReport) -> list[Measurement]:
    """The paired ratios of latency in a report."""
    return [
        measurement
        for experiment in report.experiments
        for measurement in experiment.measurements
        if measurement.metric == "speedup_p50" and measurement.value is not None and measurement.interval is not None
    ]


def intervals_table(rows: list[dict[str, Any]], title: str) -> Table:
    """One row per interval."""
    table = Table(title=title, title_justify="left")
    for heading in ("run", "batch", "ratio", "95 % interval", "contains 1"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["run"]),
            str(row["batch_size"]),
            f"{row['ratio']:.3f}x",
            f"[{row['low']:.3f}, {row['high']:.3f}]".replace("[", r"\["),
            "yes" if row["contains_1"] else "NO",
        )
    return table


def _run(folder: Path, spec: dict[str, Any]) -> StudyReport:
    spec_path, report_path = folder / "spec.json", folder / "report.json"
    spec_path.write_text(json.dumps(spec))
    ended = subprocess.run(
        [sys.executable, "-m", "experiments", "run", str(spec_path), "--json", str(report_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise SystemExit(f"steelyard run ended with {ended.returncode}:\n{(ended.stdout + ended.stderr)[-3000:]}")
    return StudyReport.model_validate_json(report_path.read_text())


if __name__ == "__main__":
    sys.exit(main())
