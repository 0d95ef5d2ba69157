"""Benchmark-only runs: quick, marked, and never a result. One builder serves a whole study."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from experiments.cli import FINE, main
from experiments.records import StudyReport
from tests.experiments.tiny_models import tiny_classifier

WORDS = ["good", "bad", "fine", "poor", "film", "plot", "great", "awful"]


def spec(tmp_path: Path) -> Path:
    rows = [f"{WORDS[i % 8]} {WORDS[i // 8 % 8]},{'pos' if i % 2 else 'neg'}" for i in range(40)]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    study = {
        "name": "benchmark only",
        "model": {"source": "path", "path": str(tiny_classifier(tmp_path / "model", WORDS, ("neg", "pos")))},
        "dataset": {"source": "path", "path": str(tmp_path / "reviews.csv")},
        "workload": {"batch_sizes": [1, 2], "sequence_length": 8, "min_seconds": 0.01, "min_samples": 5},
        "baseline": "fp32",
        "experiments": [
            {"name": "fp32", "runtime": "onnxruntime"},
            {"name": "fp16", "recipe": [{"technique": "fp16"}], "runtime": "onnxruntime"},
        ],
    }
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(study))
    return path


def test_an_unpaired_run_times_each_experiment_alone_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "report.json"
    assert main(["run", str(spec(tmp_path)), "--json", str(out), "--unpaired"]) == FINE
    report = StudyReport.model_validate_json(out.read_bytes())
    for experiment in report.experiments:
        assert experiment.unpaired
        assert experiment.find("accuracy") is None
        assert experiment.canary is not None and experiment.canary.passed
        for batch_size in (1, 2):
            latency = experiment.find("latency_p50_ms", batch_size=batch_size)
            speedup = experiment.find("speedup_p50", batch_size=batch_size)
            assert latency is not None and latency.value is not None and latency.n is not None and latency.n >= 5
            assert speedup is not None and speedup.value is None and "unpaired" in str(speedup.reason)
    assert psutil.Process().children(recursive=True) == []
    assert "unpaired" in capsys.readouterr().out
