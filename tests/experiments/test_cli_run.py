"""``steelyard run`` and ``attempt`` for real: a tiny model, fresh processes, a terminal, an interruption."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from experiments.records import Event, Report, StudyReport
from experiments.spec import parse
from tests.experiments.tiny_models import tiny_classifier
from tests.waiting import wait_for

WORDS = ("good", "bad", "fine", "poor")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its data, a study of two experiments (one of which can't run), and a cache."""
    folder = tmp_path_factory.mktemp("cli")
    rows = [f"{WORDS[n % 4]} {WORDS[n // 4 % 4]},{'pos' if n % 2 else 'neg'}" for n in range(32)]
    (folder / "reviews.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    spec = {
        "name": "tiny",
        "model": {"source": "path", "path": str(tiny_classifier(folder / "model", WORDS, ("neg", "pos")))},
        "dataset": {"source": "path", "path": str(folder / "reviews.csv")},
        "workload": {"batch_sizes": [1], "sequence_length": 8, "min_seconds": 0.05, "min_samples": 8},
        "baseline": "fp32",
        "experiments": [{"name": "fp32"}, {"name": "[red]on gpu", "resources": {"device": "cuda"}}],
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    return folder


def environment(home: Path) -> dict[str, str]:
    roots = {"STEELYARD_CACHE": str(home / "cache"), "STEELYARD_PATH_ROOTS": str(home), "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **roots, "TERM": "xterm", "COLUMNS": "100", "CUDA_VISIBLE_DEVICES": ""}


def read_all(descriptor: int) -> bytes:
    """Everything a pseudo-terminal shows until its last writer leaves."""
    seen = b""
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # Linux says EIO where the other end is gone
            return seen
        if not piece:
            return seen
        seen += piece


def test_a_run_on_a_terminal_shows_bars_and_ends_with_the_table(home: Path) -> None:
    ours, theirs = pty.openpty()
    arguments = ["run", home / "spec.json", "--json", home / "out.json", "--artifacts", home / "kept"]
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment(home),
        text=True,
    )
    os.close(theirs)
    shown = read_all(ours).decode()
    os.close(ours)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1, shown
    assert "Traceback" not in shown
    assert "\x1b[" in shown, "a terminal gets a live display"
    assert "[red]on gpu" in shown, "names are text, not markup"
    assert "fp32" in out and "failed" in out
    report = StudyReport.model_validate_json((home / "out.json").read_bytes())
    states = {e.experiment: e for e in report.experiments}
    assert states["fp32"].status == "succeeded"
    assert states["fp32"].find("latency_p50_ms", batch_size=1) is not None
    failure = states["[red]on gpu"].failure
    assert failure is not None and failure.kind == "unsupported"
    assert report.verdict and report.verdict in out
    assert any((home / "kept").rglob("*.safetensors"))


def test_an_attempt_says_everything_on_its_descriptor_and_leaves_its_report(home: Path) -> None:
    point = parse(json.loads((home / "spec.json").read_text())).expand()[0]
    (home / "attempt.json").write_text(json.dumps(point.canonical()))
    reading, writing = os.pipe()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    arguments = ["--spec", home / "attempt.json", "--out", home / "report.json", "--events-fd", writing]
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", "attempt", *map(str, arguments), "--cores", ",".join(map(str, cores))],
        pass_fds=(writing,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(home),
        text=True,
    )
    os.close(writing)
    with os.fdopen(reading) as stream:
        events = [Event.model_validate_json(line) for line in stream]
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "report" and events[-1].report_path == str(home / "report.json")
    report = Report.model_validate_json((home / "report.json").read_bytes())
    assert report.status == "succeeded" and report.environment is not None
    assert report.environment.cores == cores
    assert report.environment.spec_sha256 == point.sha256()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_stops_what_it_started_and_says_so_plainly(
    home: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    # A seed of its own: nothing is built yet, while the machine's ceilings are known.
    spec = {**json.loads((home / "spec.json").read_text()), "seed": int(number)}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-m", "experiments", "run", str(tmp_path / "spec.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "build fp32" in line:
            break
    # The line is said just before the process that builds is started.
    started = psutil.Process(process.pid)
    children = wait_for(lambda: started.children(recursive=True))
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert out == ""
