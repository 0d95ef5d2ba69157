"""The whole way of an experiment, with real models in real processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from experiments.launch import Events
from experiments.pipeline import run_experiment, run_study
from experiments.protocols import Host
from experiments.records import Event, FailureKind, Report, StudyReport
from experiments.spec import StudySpec, parse
from tests.experiments.tiny_models import tiny_classifier, tiny_decoder

WORDS = ["good", "bad", "fine", "poor", "film", "plot", "great", "awful"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(cache=tmp_path / "cache", offline=True)


def write_reviews(path: Path, rows: int = 40) -> Path:
    lines = ["text,label"]
    lines += [f"{WORDS[i % 8]} {WORDS[i // 8 % 8]},{'pos' if i % 2 else 'neg'}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def classifier_study(tmp_path: Path, experiments: list[object], **changes: object) -> StudySpec:
    return parse(
        {
            "name": "tiny",
            "model": {"source": "path", "path": str(tiny_classifier(tmp_path / "model", WORDS, ("neg", "pos")))},
            "dataset": {"source": "path", "path": str(write_reviews(tmp_path / "reviews.csv"))},
            "workload": {"batch_sizes": [1, 2], "sequence_length": 8, "min_seconds": 0.05, "min_samples": 8},
            "baseline": "fp32",
            "experiments": [{"name": "fp32"}, *experiments],
            **changes,
        }
    )


def by_name(study: StudyReport) -> dict[str, Report]:
    return {report.experiment: report for report in study.experiments}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyReport, Path, dict[str, list[Event]]]:
    """One study of every precision on both runtimes, run once."""
    tmp_path = tmp_path_factory.mktemp("study")
    spec = classifier_study(
        tmp_path,
        [
            {"name": "fp32-ort", "runtime": "onnxruntime"},
            {"name": "bf16", "recipe": [{"technique": "bf16"}]},
            {"name": "int8-ort", "recipe": [{"technique": "int8-dynamic"}], "runtime": "onnxruntime"},
        ],
    )
    events: dict[str, list[Event]] = {}
    report = run_study(
        spec,
        Host(cache=tmp_path / "cache", offline=True),
        on_event=lambda name, event: events.setdefault(name, []).append(event),
        artifacts=tmp_path / "kept",
    )
    return report, tmp_path, events


def test_every_experiment_succeeds_and_leaves_no_process(
    study: tuple[StudyReport, Path, dict[str, list[Event]]],
) -> None:
    report, tmp_path, _ = study
    assert {r.experiment: r.failure for r in report.experiments} == dict.fromkeys(by_name(report))
    assert psutil.Process().children(recursive=True) == []
    assert list((tmp_path / "cache" / "scratch").iterdir()) == []


def test_a_baseline_compared_with_itself_does_not_differ(
    study: tuple[StudyReport, Path, dict[str, list[Event]]],
) -> None:
    baseline = by_name(study[0])["fp32"]
    kl = baseline.find("kl_divergence_mean")
    flips = baseline.find("flips")
    noise = baseline.find("speedup_p50", batch_size=1)
    assert kl is not None and kl.value is not None and abs(kl.value) <= 1e-7
    assert flips is not None and flips.value == 0
    assert noise is not None and noise.interval is not None


def test_speed_is_a_paired_ratio_with_an_interval(study: tuple[StudyReport, Path, dict[str, list[Event]]]) -> None:
    for name in ("fp32-ort", "int8-ort", "bf16"):
        for batch_size in (1, 2):
            ratio = by_name(study[0])[name].find("speedup_p50", batch_size=batch_size)
            assert ratio is not None and ratio.interval is not None and ratio.value is not None
            assert ratio.interval.low <= ratio.value <= ratio.interval.high


def test_the_report_is_valid_json_and_comes_back_equal(
    study: tuple[StudyReport, Path, dict[str, list[Event]]],
) -> None:
    text = study[0].model_dump_json()
    assert "NaN" not in text and "Infinity" not in text
    assert StudyReport.model_validate(json.loads(text)) == study[0]


def test_progress_only_rises_and_ends_at_one(study: tuple[StudyReport, Path, dict[str, list[Event]]]) -> None:
    for events in study[2].values():
        fractions = [event.fraction for event in events if event.fraction is not None]
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0


def test_the_kept_artifact_is_what_was_measured(study: tuple[StudyReport, Path, dict[str, list[Event]]]) -> None:
    report, tmp_path, _ = study
    record = by_name(report)["int8-ort"].artifact
    assert record is not None
    kept = tmp_path / "kept" / "int8-ort"
    found = {p.relative_to(kept).as_posix(): p.stat().st_size for p in kept.rglob("*") if p.is_file()}
    assert {name: size for name, size in found.items() if name not in ("README.md", "spec.yaml")} == record.files
    assert {"README.md", "spec.yaml"} <= set(found)


def test_work_is_shared_within_a_study(study: tuple[StudyReport, Path, dict[str, list[Event]]]) -> None:
    assert {"prepared data", "artifact of fp32", "the baseline's answers"} <= set(by_name(study[0])["bf16"].reused)


def test_the_fingerprint_names_weights_data_and_machine(
    study: tuple[StudyReport, Path, dict[str, list[Event]]],
) -> None:
    for report in study[0].experiments:
        environment = report.environment
        assert environment is not None
        assert len(environment.model_sha256) == 64
        assert environment.dataset_sha256
        assert environment.threads == len(os.sched_getaffinity(0))
        assert "torch" in environment.libraries or report.experiment.endswith("ort")
    first, second = (by_name(study[0])[name].environment for name in ("fp32", "bf16"))
    assert first is not None and second is not None and first.compared() == second.compared()


def test_the_conductor_never_imports_torch() -> None:
    import subprocess

    code = "import sys; import experiments.pipeline; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_same_seed_gives_the_same_quality_to_the_last_digit(tmp_path: Path) -> None:
    numbers = []
    for cache in ("one", "two"):
        spec = classifier_study(tmp_path, [{"name": "int8", "recipe": [{"technique": "int8-dynamic"}]}])
        report = run_study(spec, Host(cache=tmp_path / cache, offline=True))
        assert [r.failure for r in report.experiments] == [None, None]
        numbers.append(
            {
                (r.experiment, m.metric, tuple(m.at.items())): m.value
                for r in report.experiments
                for m in r.measurements
                if m.metric in {"accuracy", "kl_divergence_mean", "flips", "top1_agreement", "artifact_bytes"}
            }
        )
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) >= 8


def test_generation_tells_times_of_tokens_and_perplexity(tmp_path: Path, host: Host) -> None:
    text = tmp_path / "text.csv"
    text.write_text("text\n" + "\n".join(" ".join(WORDS[(i + j) % 8] for j in range(30)) for i in range(40)) + "\n")
    spec = parse(
        {
            "name": "tiny decoder",
            "model": {"source": "path", "path": str(tiny_decoder(tmp_path / "model", WORDS))},
            "dataset": {"source": "path", "path": str(text)},
            "workload": {
                "batch_sizes": [1],
                "sequence_length": 8,
                "new_tokens": 4,
                "min_seconds": 0.05,
                "min_samples": 8,
            },
            "baseline": "fp32",
            "experiments": [{"name": "fp32"}, {"name": "fp32-ort", "runtime": "onnxruntime"}],
        }
    )
    report = by_name(run_study(spec, host))
    assert {name: r.failure for name, r in report.items()} == {"fp32": None, "fp32-ort": None}
    for name in report:
        for metric in ("ttft_ms", "tpot_ms", "output_tokens_per_s", "perplexity", "bits_per_byte"):
            measurement = report[name].find(metric)
            assert measurement is not None and measurement.value is not None and measurement.value > 0, metric
    own, exported = report["fp32"].find("perplexity"), report["fp32-ort"].find("perplexity")
    assert own is not None and exported is not None and own.value is not None
    assert exported.value == pytest.approx(own.value, rel=1e-4)
    kl = report["fp32"].find("kl_divergence_mean")
    assert kl is not None and kl.value is not None and abs(kl.value) <= 1e-7


def test_asking_for_cuda_without_one_is_a_failure_never_a_number(tmp_path: Path, host: Host) -> None:
    spec = classifier_study(tmp_path, [], resources={"device": "cuda"})
    report = run_study(spec, host).experiments[0]
    assert report.status == "failed"
    assert report.failure is not None
    assert report.failure.kind in {FailureKind.UNSUPPORTED, FailureKind.FALLBACK}
    assert report.measurements == ()


def test_one_broken_experiment_does_not_stop_the_study(tmp_path: Path, host: Host) -> None:
    spec = classifier_study(
        tmp_path, [{"name": "bf16-ort", "recipe": [{"technique": "bf16"}], "runtime": "onnxruntime"}]
    )
    reports = by_name(run_study(spec, host))
    assert reports["fp32"].status == "succeeded"
    failure = reports["bf16-ort"].failure
    assert failure is not None and failure.kind is FailureKind.UNSUPPORTED
    assert "bf16" in failure.message


def test_a_timeout_is_typed_and_leaves_no_process(tmp_path: Path, host: Host) -> None:
    spec = classifier_study(tmp_path, [], resources={"timeout_s": 1}).expand()[0]
    report = run_experiment(spec, host, Events(lambda event: None))
    assert report.failure is not None
    assert report.failure.kind is FailureKind.TIMEOUT
    assert psutil.Process().children(recursive=True) == []


@pytest.mark.slow
def test_the_spec_beside_a_kept_artifact_makes_the_same_bytes_again(tmp_path: Path) -> None:
    spec = classifier_study(
        tmp_path, [{"name": "int8 / ort", "recipe": [{"technique": "int8-dynamic"}], "runtime": "onnxruntime"}]
    )
    first = run_study(spec, Host(cache=tmp_path / "cache", offline=True), artifacts=tmp_path / "kept")
    folder = tmp_path / "kept" / "int8---ort"
    assert (folder / "README.md").read_text().startswith("# int8 / ort\n")
    again = run_study(parse((folder / "spec.yaml").read_text()), Host(cache=tmp_path / "another cache", offline=True))
    made, before = (by_name(r)["int8 / ort"].artifact for r in (again, first))
    assert made is not None and before is not None
    assert made.sha256 == before.sha256
