"""Runs the engine in a fresh process, as a person would from a shell, and takes the time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import hardware
from experiments.records import Report, StudyReport
from experiments.spec import ExperimentSpec

ROOT = Path(__file__).parents[1]


def steelyard_run(
    spec: dict[str, Any], cache: Path, folder: Path, arguments: Sequence[str] = ()
) -> tuple[float, StudyReport]:
    """Wall seconds of ``steelyard run`` on ``spec`` with ``cache``, and its report; scratch files go to ``folder``.

    Raises:
        SystemExit: an experiment failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, told = folder / "spec.json", folder / "report.json"
    asked.write_text(json.dumps(spec))
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "run", str(asked), "--json", str(told), *arguments],
        cwd=ROOT,
        env={**os.environ, "STEELYARD_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"steelyard run ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return wall, StudyReport.model_validate_json(told.read_bytes())


def attempt_run(spec: ExperimentSpec, cache: Path, folder: Path) -> float:
    """Wall seconds of one experiment run alone, as a worker runs it.

    Raises:
        SystemExit: it failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, told = folder / "experiment.json", folder / "report.json"
    asked.write_text(spec.model_dump_json())
    cores = ",".join(str(core) for core in hardware.allowed_cores())
    with open(os.devnull, "w") as events:
        number = str(events.fileno())
        started = time.monotonic()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "experiments", "attempt"),
                *("--spec", str(asked), "--out", str(told), "--events-fd", number, "--cores", cores),
            ],
            cwd=ROOT,
            env={**os.environ, "STEELYARD_CACHE": str(cache)},
            pass_fds=(events.fileno(),),
            capture_output=True,
            text=True,
            check=False,
        )
        wall = time.monotonic() - started
    if done.returncode:
        why = Report.model_validate_json(told.read_bytes()).failure if told.is_file() else None
        raise SystemExit(f"{spec.variant.name} alone failed: {why.message if why else done.stderr[-3000:]}")
    return wall
