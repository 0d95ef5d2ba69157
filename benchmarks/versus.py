"""Five conversions of one model, with the same number of timed iterations, through Steelyard and through its peers.

FP32, INT8 dynamic, INT8 static, FP16 and INT4 of minilm-reviews on ONNX Runtime, 50 timed requests at batch 1 and 20 at
batch 8 each, from nothing but the fetched model and data. The bare script is what a person would write; Olive and
optimum-benchmark run in environments of their own, made by this script. Steelyard runs twice: the whole study (paired
with its baseline in several fresh processes, canaries, quality and fidelity), and benchmark-only (``--unpaired``).

Then one judge times all kept artifacts in turn and lets them answer the same test rows: whose best artifact is best?
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from benchmarks.cold import cold_cache
from benchmarks.engine import steelyard_run
from benchmarks.peers.environments import PEERS, environment
from experiments import catalog, hardware
from experiments.parts.cache import default_cache
from experiments.parts.int8_range import reduce_range
from experiments.protocols import DatasetSource, Host, ModelSource

FOLDER = Path(__file__).parent
ITERATIONS = {"1": 50, "8": 20}
WARMUP = 5
CALIBRATION = 64
LENGTH = 128
#: A variant counts as usable if its accuracy is within this of the FP32 artifact's.
LOSS = 0.01
WHOLE, ALONE, BARE = "Steelyard", "Steelyard, unpaired", "bare script"
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "FP32": [],
    "INT8 dynamic": [{"technique": "int8-dynamic"}],
    "INT8 static": [{"technique": "int8-static", "rows": CALIBRATION}],
    "FP16": [{"technique": "fp16"}],
    "INT4": [{"technique": "int4-weight-only", "method": "rtn", "group_size": 32}],
}


@dataclass
class Contender:
    """What one way of doing it took and made.

    Attributes:
        artifacts: variant -> ONNX file of the last repeat.
        missing: variant -> why there is none; "" for the whole contender.
    """

    name: str
    walls: list[float] = field(default_factory=list)
    artifacts: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    p50: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def wall(self) -> float | None:
        """Median wall seconds of all repeats."""
        return statistics.median(self.walls) if self.walls else None


def main(arguments: list[str] | None = None) -> int:
    """Run every contender in turn, several times, then the judge; print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks versus", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="of each contender; medians are shown")
    parser.add_argument("--examples", type=int, default=200, help="that quality is judged on")
    parser.add_argument("--skip-peers", action="store_true", help="only Steelyard and the bare script")
    options = parser.parse_args(arguments)
    console = Console()
    host = Host(cache=default_cache(), offline=True)
    job = make_job(host)
    contenders = {name: Contender(name) for name in (BARE, ALONE, WHOLE, *(peer.name for peer in PEERS))}
    pythons = {} if options.skip_peers else environments(host.cache, contenders, console)
    with tempfile.TemporaryDirectory(prefix="steelyard-") as scratch:
        folder = Path(scratch)
        for repeat in range(options.repeats):
            here = folder / str(repeat)
            for contender in contenders.values():
                if contender.name in (WHOLE, ALONE):
                    ours(contender, folder, here, options.examples)
                elif contender.name == BARE:
                    theirs(contender, Path(sys.executable), "bare.py", job, here)
                elif contender.name in pythons:
                    script = next(peer.script for peer in PEERS if peer.name == contender.name)
                    theirs(contender, pythons[contender.name], script, job, here)
                wall = contender.walls[-1] if len(contender.walls) > repeat else None
                took = f"{wall:.1f} s" if wall is not None else "nothing"
                console.print(f"repeat {repeat + 1} of {options.repeats}: {contender.name} {took}", style="dim")
        judged = judge(contenders, host, folder, options.examples)
    console.print(wall_table(contenders))
    console.print(artifact_table(contenders, judged))
    for line in (*targets(contenders, judged), *notes(contenders)):
        console.print(line)
    return 0


def make_job(host: Host) -> dict[str, Any]:
    """What bare script and peers are asked to do: model, rows to calibrate on and to time with."""
    model: ModelSource = TypeAdapter(catalog.union("model")).validate_python(
        {"source": "demo", "name": "minilm-reviews"}
    )
    rows = data()
    calibration = rows.load(host, "text-classification", split=rows.split_for("calibration"), limit=CALIBRATION)
    requests = rows.load(host, "text-classification", limit=CALIBRATION)
    return {
        "model": str(model.fetch(host)),
        "task": "text-classification",
        "sequence_length": LENGTH,
        "threads": len(hardware.allowed_cores()),
        "iterations": ITERATIONS,
        "warmup": WARMUP,
        "calibration": list(calibration.texts),
        "requests": list(requests.texts),
        "reduce_range": reduce_range("auto", hardware.isa())[0],
    }


def data() -> DatasetSource:
    """The demo's reviews."""
    source: DatasetSource = TypeAdapter(catalog.union("dataset")).validate_python({"source": "demo", "name": "reviews"})
    return source


def environments(cache: Path, contenders: dict[str, Contender], console: Console) -> dict[str, Path]:
    """Interpreter of each peer whose environment can be made."""
    found: dict[str, Path] = {}
    for peer in PEERS:
        console.print(f"environment of {peer.name}: made once, takes minutes", style="dim")
        try:
            found[peer.name] = environment(peer, cache)
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            contenders[peer.name].missing[""] = str(error)
    return found


def ours(contender: Contender, folder: Path, here: Path, examples: int) -> None:
    """The study through ``steelyard run``, from a cache that has only what was fetched."""
    spec = {
        "schema_version": 1,
        "name": "versus",
        "model": {"source": "demo", "name": "minilm-reviews"},
        "dataset": {"source": "demo", "name": "reviews", "split": "test", "limit": examples},
        "workload": {"batch_sizes": [int(size) for size in ITERATIONS], "sequence_length": LENGTH},
        "baseline": "FP32",
        "experiments": [{"name": n, "recipe": r, "runtime": "onnxruntime"} for n, r in VARIANTS.items()],
    }
    work = here / contender.name.replace(" ", "-")
    kept = work / "artifacts"
    counts = ",".join(str(count) for count in ITERATIONS.values())
    options = ["--requests", counts, "--artifacts", str(kept), *(["--unpaired"] if contender.name == ALONE else [])]
    wall, report = steelyard_run(spec, cold_cache(folder), work, options)
    contender.walls.append(wall)
    for told in report.experiments:
        name = told.experiment
        contender.artifacts[name] = str(next(kept.glob(f"{name.replace(' ', '-')}/model.onnx")))
        medians = {s: told.find("latency_p50_ms", batch_size=int(s)) for s in ITERATIONS}
        contender.p50[name] = {s: m.value for s, m in medians.items() if m is not None and m.value is not None}


def theirs(contender: Contender, python: Path, script: str, job: dict[str, Any], here: Path) -> None:
    """One run of a script in its environment; a failure is noted, and the others go on."""
    work = here / contender.name.replace(" ", "-")
    out = work / "out"
    out.mkdir(parents=True)
    asked = work / "job.json"
    asked.write_text(json.dumps({**job, "out": str(out)}))
    started = time.monotonic()
    done = subprocess.run(
        [str(python), str(FOLDER / "peers" / script), str(asked)],
        cwd=work,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OLIVE_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    wall = time.monotonic() - started
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        contender.missing[""] = f"it ended with {done.returncode}: {lines[-1][:300] if lines else 'no output'}"
        return
    told = json.loads(done.stdout.strip().splitlines()[-1])
    contender.walls.append(wall)
    contender.artifacts = {name: path for name, path in told["artifacts"].items() if path}
    contender.missing |= told["missing"]
    contender.p50 = told["p50_ms"]


def judge(contenders: dict[str, Contender], host: Host, folder: Path, examples: int) -> dict[str, dict[str, Any]]:
    """'contender: variant' -> ``p50_ms`` and ``accuracy``, all artifacts timed in turn by one process."""
    rows = data().load(host, "text-classification", limit=examples)
    files = {
        f"{c.name}: {variant}": path
        for c in contenders.values()
        for variant, path in c.artifacts.items()
        if c.name != ALONE
    }
    asked = folder / "judge.json"
    job = make_job(host)
    asked.write_text(json.dumps({**job, "artifacts": files, "texts": rows.texts, "labels": rows.labels}))
    done = subprocess.run(
        [sys.executable, str(FOLDER / "peers" / "judge.py"), str(asked)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the judge ended with {done.returncode}:\n{done.stderr[-3000:]}")
    verdicts: dict[str, dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return verdicts


def best(contender: Contender, judged: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """The fastest artifact of a contender whose accuracy is within :data:`LOSS` of its own FP32 one."""
    mine = {v: judged[f"{contender.name}: {v}"] for v in contender.artifacts if f"{contender.name}: {v}" in judged}
    if "FP32" not in mine:
        return None
    usable = {v: said for v, said in mine.items() if said["accuracy"] >= mine["FP32"]["accuracy"] - LOSS}
    name = min(usable, key=lambda v: usable[v]["p50_ms"])
    return name, usable[name]


def wall_table(contenders: dict[str, Contender]) -> Table:
    """Wall seconds of all, and their ratios."""
    made = Table(title="Five variants, in wall seconds (median of the repeats)", title_justify="left")
    for heading in ("through", "median", "runs", "x bare script", "x Olive", "x optimum-benchmark"):
        made.add_column(heading, justify="left" if heading == "through" else "right")
    for contender in contenders.values():
        cells = [ratio(contender.wall, contenders[n].wall) for n in (BARE, *(peer.name for peer in PEERS))]
        runs = " ".join(f"{wall:.0f}" for wall in contender.walls)
        made.add_row(contender.name, f"{contender.wall:.1f}" if contender.wall else "-", runs or "-", *cells)
    return made


def ratio(mine: float | None, other: float | None) -> str:
    """``mine`` over ``other``, where there are both."""
    return f"{mine / other:.2f}" if mine and other else "-"


def artifact_table(contenders: dict[str, Contender], judged: dict[str, dict[str, Any]]) -> Table:
    """What each contender's artifacts are worth, by the same judge; the best of each is marked."""
    made = Table(title="Artifacts, by one judge: batch 1 p50 in ms, accuracy", title_justify="left")
    made.add_column("variant")
    shown = [c for c in contenders.values() if c.name != ALONE]
    for contender in shown:
        made.add_column(contender.name, justify="right")
    for variant in VARIANTS:
        cells = []
        for contender in shown:
            said = judged.get(f"{contender.name}: {variant}")
            top = best(contender, judged)
            mark = " *" if top and top[0] == variant else ""
            cells.append(f"{said['p50_ms']:.1f}, {said['accuracy']:.3f}{mark}" if said else "-")
        made.add_row(variant, *cells)
    return made


def targets(contenders: dict[str, Contender], judged: dict[str, dict[str, Any]]) -> list[str]:
    """The ratios that are aimed at, beside what was measured."""
    whole, alone, bare = (contenders[name].wall for name in (WHOLE, ALONE, BARE))
    lines = [f"unpaired to the bare script {ratio(alone, bare)}x, aimed at 1.1x or less"]
    for peer, aim in zip(PEERS, ("0.8x", "0.25x"), strict=True):
        lines.append(f"whole study to {peer.name} {ratio(whole, contenders[peer.name].wall)}x, aimed at {aim} or less")
    for contender in contenders.values():
        if (found := best(contender, judged)) is not None and contender.name != ALONE:
            name, said = found
            lines.append(f"best of {contender.name}: {name}, {said['p50_ms']:.1f} ms, accuracy {said['accuracy']:.3f}")
    return lines


def notes(contenders: dict[str, Contender]) -> list[str]:
    """What could not be run, and why."""
    return [
        f"{contender.name}{', ' + variant if variant else ''}: not run: {why}"
        for contender in contenders.values()
        for variant, why in contender.missing.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
