"""What the dashboard adds: an experiment's wall time against a bare script that does the same work.

The experiment (classifier, ONNX Runtime, dynamic INT8 against FP32) runs through a dashboard of its own with a cold
artifact cache. The bare script (``bare_onnxruntime.py``) then loads, exports, quantizes and times the same numbers of
requests, interleaved, on the same inputs. The engine also does what the script does not: canaries, a round trip in a
fresh process, quality and fidelity on the examples, ceilings, a record of everything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from benchmarks.cold import cold_cache
from benchmarks.dashboard import ROOT, Dashboard, dashboard
from experiments import catalog
from experiments.parts.int8_range import reduce_range
from experiments.protocols import Host
from experiments.records import Report, StudyReport

StudyModel: TypeAdapter[Any] = TypeAdapter(catalog.union("model"))
BASELINE, CANDIDATE = "fp32-ort", "int8-ort"
DATA = {"minilm-reviews": "reviews", "digits-vit": "digits"}
LIMIT = 1.15
WEB_LIMIT_BYTES = 200 * 2**20


@dataclass(frozen=True)
class Timed:
    """One experiment through the dashboard: its wall seconds (leased to ended) and its report."""

    name: str
    wall_s: float
    report: Report


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks overhead", description=__doc__)
    parser.add_argument("--model", default="minilm-reviews", choices=sorted(DATA))
    parser.add_argument("--seconds", type=float, default=120.0, help="of measuring, both sides together")
    parser.add_argument("--skip-long", action="store_true", help="only the fixed cost at 2 s a side")
    parser.add_argument("--examples", type=int, default=100, help="that quality is judged on")
    options = parser.parse_args(arguments)
    console = Console()

    with tempfile.TemporaryDirectory(prefix="steelyard-") as scratch:
        folder = Path(scratch)
        cache = cold_cache(folder)
        with dashboard(folder / "home", cache) as running:
            fixed = through(running, spec(options.model, 2.0, options.examples), timeout_s=900)
            console.print(stages_table(fixed))
            web_table(running, console)
            if options.skip_long:
                return 0
        cache = cold_cache(folder)
        with dashboard(folder / "home-long", cache) as running:
            long = through(running, spec(options.model, options.seconds / 2, options.examples), timeout_s=3600)
        candidate = next(timed for timed in long if timed.name == CANDIDATE)
        bare_s, bare = run_bare(cache, candidate.report, folder)
    ratio = candidate.wall_s / bare_s
    console.print(compare_table(candidate, bare_s, bare, options.seconds))
    console.print(f"{ratio:.3f}x the bare script's wall time; the limit is {LIMIT}x.")
    return 0


def spec(model: str, seconds: float, examples: int) -> dict[str, Any]:
    """FP32 and dynamic INT8 of a demo classifier on ONNX Runtime, one request at a time."""
    return {
        "schema_version": 1,
        "name": f"benchmark: {seconds:g} s a side",
        "model": {"source": "demo", "name": model},
        "dataset": {"source": "demo", "name": DATA[model], "split": "test", "limit": examples},
        "workload": {"batch_sizes": [1], "sequence_length": 128, "min_seconds": seconds},
        "baseline": BASELINE,
        "experiments": [
            {"name": BASELINE, "runtime": "onnxruntime"},
            {"name": CANDIDATE, "recipe": [{"technique": "int8-dynamic"}], "runtime": "onnxruntime"},
        ],
    }


def through(running: Dashboard, study: dict[str, Any], timeout_s: float) -> list[Timed]:
    """Run the study and read each experiment's wall time from its attempt."""
    state = running.run_study(study, timeout_s)
    report = StudyReport.model_validate(running.client.results(state["id"]))
    found = []
    for experiment, said in zip(state["experiments"], report.experiments, strict=True):
        if said.status != "succeeded":
            reason = said.failure.message if said.failure else said.status
            raise SystemExit(f"{said.experiment} did not succeed: {reason}")
        started, ended = (datetime.fromisoformat(experiment[name]) for name in ("started_at", "ended_at"))
        found.append(Timed(said.experiment, (ended - started).total_seconds(), said))
    return found


def run_bare(cache: Path, report: Report, folder: Path) -> tuple[float, dict[str, Any]]:
    """The bare script on the same model, inputs, threads and numbers of requests; wall seconds and what it printed."""
    model = StudyModel.validate_python(report.spec["model"]).fetch(Host(cache=cache))
    pack = next(path for path in (cache / "packs").iterdir() if path.is_dir())
    requests = folder / "requests.npz"
    np.savez(requests, **{p.stem.removeprefix("work_"): np.load(p) for p in pack.glob("work_*.npy")})
    samples = report.find("latency_p50_ms", batch_size=1)
    ratio = report.find("speedup_p50", batch_size=1)
    assert samples is not None
    assert samples.n is not None
    assert ratio is not None
    assert ratio.value is not None
    assert report.environment is not None
    blocks = 24
    per_block = {"candidate": samples.n // blocks, "baseline": round(samples.n / ratio.value) // blocks}
    options = {
        "blocks": blocks,
        "requests": per_block,
        "threads": report.environment.threads,
        "task": report.task,
        "reduce_range": reduce_range("auto", report.environment.isa)[0],
    }
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "benchmarks/bare_onnxruntime.py", str(model), str(requests), json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"the bare script ended with {done.returncode}:\n{done.stderr[-3000:]}")
    printed: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return wall, printed


def stages_table(found: list[Timed]) -> Table:
    """Where the seconds of a short experiment go."""
    stages = list(dict.fromkeys(stage for timed in found for stage in timed.report.stage_seconds))
    table = Table(title="An experiment with 2 s of timing a side, in seconds", title_justify="left")
    table.add_column("part")
    for timed in found:
        table.add_column(timed.name, justify="right")
    for stage in stages:
        table.add_row(stage, *(f"{t.report.stage_seconds.get(stage, 0.0):.2f}" for t in found))
    inside = [sum(t.report.stage_seconds.values()) for t in found]
    table.add_row("start, lease, record", *(f"{t.wall_s - spent:.2f}" for t, spent in zip(found, inside, strict=True)))
    table.add_section()
    table.add_row("wall", *(f"{t.wall_s:.2f}" for t in found))
    return table


def compare_table(candidate: Timed, bare_s: float, bare: dict[str, Any], seconds: float) -> Table:
    """The dashboard's experiment beside the bare script, part by part."""
    table = Table(title=f"{seconds:g} s of measuring, in seconds", title_justify="left")
    for heading in ("dashboard", "", "bare script", ""):
        table.add_column(heading, justify="left" if heading else "right")
    ours = [(name, f"{value:.2f}") for name, value in candidate.report.stage_seconds.items()]
    ours.append(("start, lease, record", f"{candidate.wall_s - sum(candidate.report.stage_seconds.values()):.2f}"))
    theirs = [(name, f"{value:.2f}") for name, value in bare["seconds"].items()]
    for index in range(max(len(ours), len(theirs))):
        left = ours[index] if index < len(ours) else ("", "")
        right = theirs[index] if index < len(theirs) else ("", "")
        table.add_row(*left, *right)
    table.add_section()
    table.add_row("wall", f"{candidate.wall_s:.2f}", "wall", f"{bare_s:.2f}")
    return table


def web_table(running: Dashboard, console: Console) -> None:
    """Memory of the web processes, and whether torch is in them."""
    rss = running.web_rss_bytes()
    console.print(f"web processes (limit {WEB_LIMIT_BYTES / 2**20:.0f} MiB each):")
    for name, used in rss.items():
        console.print(f"  {name}: {used / 2**20:.0f} MiB")
    console.print(f"  torch mapped: {'YES' if 'libtorch' in running.web_maps() else 'no'}")


if __name__ == "__main__":
    sys.exit(main())
