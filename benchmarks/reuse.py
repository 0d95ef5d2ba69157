"""What a study saves by doing shared work once: 12 variants in one study against the same 12 run alone.

Alone, each experiment (with its baseline) starts from a cache that has only the fetched model and data; together they
share the export, the calibration statistics, the baseline and its answers, and the fine-tuned, distilled or pruned
model that several recipes begin with.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cold import cold_cache
from benchmarks.engine import attempt_run, steelyard_run
from experiments.spec import parse

LIMIT = 0.6
BASELINE = "fp32"


def main(arguments: list[str] | None = None) -> int:
    """Run both ways and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks reuse", description=__doc__)
    parser.add_argument("--repeats", type=int, default=1, help="of both ways; medians are shown")
    parser.add_argument("--steps", type=int, default=60, help="of training in each recipe that trains")
    parser.add_argument("--examples", type=int, default=200, help="that quality is judged on")
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing per side")
    options = parser.parse_args(arguments)
    console = Console()
    whole = study(options.steps, options.examples, options.seconds)
    together: list[float] = []
    alone: dict[str, list[float]] = {}
    reused: dict[str, tuple[str, ...]] = {}
    with tempfile.TemporaryDirectory(prefix="steelyard-") as scratch:
        folder = Path(scratch)
        for repeat in range(options.repeats):
            wall, report = steelyard_run(whole, cold_cache(folder), folder / "together")
            together.append(wall)
            reused |= {told.experiment: told.reused for told in report.experiments}
            console.print(f"repeat {repeat + 1}: together {wall:.0f} s", style="dim")
            for experiment in parse(whole).expand():
                name = experiment.variant.name
                wall = attempt_run(experiment, cold_cache(folder), folder / "alone")
                alone.setdefault(name, []).append(wall)
                console.print(f"repeat {repeat + 1}: {name} alone {wall:.0f} s", style="dim")
    console.print(table(alone, reused))
    sum_alone = sum(statistics.median(walls) for walls in alone.values())
    one = statistics.median(together)
    console.print(
        f"together {one:.0f} s, the 12 alone {sum_alone:.0f} s: {one / sum_alone:.2f}x; the limit is {LIMIT}x."
    )
    return 0


def study(steps: int, examples: int, seconds: float) -> dict[str, Any]:
    """12 ways to a smaller minilm-reviews, as a team would try them: 4 starting points, each made smaller."""
    tuned = {"technique": "finetune", "steps": steps}
    pruned = [{"technique": "prune-structured", "amount": 0.3}, tuned]
    student = [{"technique": "distill", "steps": steps}]
    dynamic, static = {"technique": "int8-dynamic"}, {"technique": "int8-static"}
    narrow = {"technique": "int4-weight-only", "method": "rtn"}
    recipes: dict[str, list[dict[str, Any]]] = {
        BASELINE: [],
        "int8": [dynamic],
        "int8-static": [static],
        "int4": [narrow],
        "tuned": [tuned],
        "tuned-int8": [tuned, dynamic],
        "tuned-int8-static": [tuned, static],
        "pruned": pruned,
        "pruned-int8": [*pruned, dynamic],
        "pruned-int4": [*pruned, narrow],
        "student": student,
        "student-int8": [*student, dynamic],
    }
    return {
        "schema_version": 1,
        "name": "12 variants",
        "model": {"source": "demo", "name": "minilm-reviews"},
        "dataset": {"source": "demo", "name": "reviews", "split": "test", "limit": examples},
        "workload": {"batch_sizes": [1], "sequence_length": 128, "min_seconds": seconds},
        "baseline": BASELINE,
        "experiments": [{"name": n, "recipe": r, "runtime": "onnxruntime"} for n, r in recipes.items()],
    }


def table(alone: dict[str, list[float]], reused: dict[str, tuple[str, ...]]) -> Table:
    """One row a variant."""
    made = Table(title="12 variants of minilm-reviews", title_justify="left")
    made.add_column("variant")
    made.add_column("alone, s", justify="right")
    made.add_column("reused in the study")
    for name, walls in alone.items():
        made.add_row(name, f"{statistics.median(walls):.1f}", ", ".join(reused.get(name, ())) or "-")
    return made


if __name__ == "__main__":
    sys.exit(main())
