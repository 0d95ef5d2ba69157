"""A realistic study, ended, running or waiting: rows through the services, numbers as seen on two AVX2 cores."""

from __future__ import annotations

import math
import random
from typing import Any

from experiments.records import (
    ArtifactRecord,
    Canary,
    Ceilings,
    DeviceFacts,
    Environment,
    Event,
    Failure,
    FailureKind,
    Interval,
    Label,
    LayerSensitivity,
    Measurement,
    Report,
    StepEffect,
    StudyReport,
)
from experiments.spec import parse
from tests import factories
from webapp.accounts.models import Team
from webapp.runs import selectors, services
from webapp.runs.models import Experiment, Study

#: name -> recipe, runtime, p50 ms, speed-up, peak MiB, artifact MB, accuracy, flips, KL, label
VARIANTS: dict[str, tuple[str | None, str, float, float, float, float, float, float, float, Label]] = {
    "fp32": (None, "torch-eager", 20.7, 1.0, 518, 90.9, 0.896, 0.0, 0.0, Label.DENSE),
    "fp32-onnxruntime": (None, "onnxruntime", 16.4, 1.26, 402, 90.4, 0.896, 0.0, 1.1e-9, Label.DENSE),
    "fp16": ("fp16", "torch-eager", 183, 0.113, 492, 45.5, 0.896, 0.0, 2.1e-7, Label.PACKED),
    "bf16": ("bf16", "torch-eager", 136, 0.152, 496, 45.5, 0.894, 0.002, 1.4e-4, Label.PACKED),
    "int8-dynamic": ("int8-dynamic", "torch-eager", 12.8, 1.62, 455, 36.1, 0.884, 0.024, 0.0081, Label.PACKED),
    "int8-dynamic-onnxruntime": (
        "int8-dynamic",
        "onnxruntime",
        11.5,
        1.80,
        331,
        23.0,
        0.892,
        0.016,
        0.0042,
        Label.PACKED,
    ),
}


def study_spec(names: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    """The study as a person would write it."""
    experiments = []
    for name in names or list(VARIANTS):
        technique, runtime = VARIANTS[name][:2] if name in VARIANTS else ("int8-dynamic", "torch-eager")
        experiments.append(
            {"name": name, "runtime": runtime, **({"recipe": [{"technique": technique}]} if technique else {})}
        )
    return {
        "name": "Reviews classifier, smaller",
        "model": {"source": "demo", "name": "minilm-reviews"},
        "task": "text-classification",
        "dataset": {"source": "demo", "name": "reviews", "limit": 500},
        "baseline": (names or list(VARIANTS))[0],
        "experiments": experiments,
        **changes,
    }


def environment(threads: int = 2) -> Environment:
    """The fingerprint of one machine."""
    return Environment(
        model="minilm-reviews",
        model_sha256="9c04" * 16,
        dataset="reviews/test",
        dataset_sha256="77aa" * 16,
        workload_sha256="1b2c" * 16,
        spec_sha256="5f1e" * 16,
        code_version="0.1.0",
        hostname="cpu-a",
        cpu="AMD EPYC 7B13",
        isa=("avx2", "fma"),
        cores=(0, 1),
        threads=threads,
        memory_bytes=24 << 30,
        devices=(DeviceFacts(name="cpu:0", kind="cpu", model="AMD EPYC 7B13", cores=(0, 1)),),
        libraries={"torch": "2.13.0", "onnxruntime-gpu": "1.31.1", "transformers": "4.57.6"},
        python="3.11.7",
        platform="Linux x86_64",
        seed=0,
        ceilings=Ceilings(copy_bytes_per_s=17e9, gemm_flops_per_s={"float32": 92e9, "bfloat16": 8e9}, threads=2),
    )


def samples(median: float, n: int, seed: int) -> tuple[float, ...]:
    """Latencies with a tail: log-normal, most within 5 % of the median."""
    draw = random.Random(seed)
    return tuple(
        median * math.exp(abs(draw.gauss(0, 0.05)) - 0.03 + (0.4 if draw.random() < 0.01 else 0)) for _ in range(n)
    )


def measurements(name: str) -> tuple[Measurement, ...]:
    """Everything that a classifier's experiment says."""
    _, _, p50, speed, peak, size, accuracy, flips, kl, _ = VARIANTS[name]
    made: list[Measurement] = []
    for batch, slower in ((1, 1.0), (8, 6.4)):
        n = int(min(700, 8000 / p50))
        at: dict[str, str | int | float] = {"batch_size": batch, "sequence_length": 128}
        median = p50 * slower
        wide = 0.012 if name == "fp32" else 0.03
        made += [
            Measurement(
                metric="latency_p50_ms",
                value=median,
                unit="ms",
                at=at,
                n=n,
                samples=samples(median, n, batch),
                interval=_interval(median * 0.985, median * 1.02),
            ),
            Measurement(metric="latency_p90_ms", value=median * 1.09, unit="ms", at=at, n=n),
            _percentile("latency_p99_ms", median * 1.4, 662, n, at),
            Measurement(metric="throughput_samples_per_s", value=1000 * batch / median, unit="samples/s", at=at, n=n),
            Measurement(
                metric="speedup_p50",
                value=speed,
                unit="x",
                at=at,
                n=20,
                interval=_interval(speed * (1 - wide), speed * (1 + wide)),
            ),
            Measurement(
                metric="cost_per_1k_requests_usd",
                value=median / batch / 1000 * 1000 * 0.08 / 3600,
                unit="USD",
                at=at,
                note="$0.08 an hour, closed-loop throughput",
            ),
            Measurement(metric="share_of_limit", value=min(0.9, 7.9 / p50), unit="share", at=at),
        ]
    drop = accuracy - 0.896
    made += [
        Measurement(metric="rss_tree_peak_bytes", value=peak * 2**20, unit="bytes"),
        Measurement(metric="weights_bytes", value=size * 1e6, unit="bytes"),
        Measurement(metric="torch_peak_allocated_bytes", value=None, unit="bytes", reason="no GPU was used"),
        Measurement(metric="artifact_bytes", value=size * 1e6, unit="bytes"),
        Measurement(metric="size_ratio", value=size / 90.9, unit="x"),
        Measurement(metric="bits_per_weight", value=8 * size / 22.7, unit="bits"),
        Measurement(metric="parameters", value=22_713_986, unit="parameters"),
        Measurement(
            metric="accuracy",
            value=accuracy,
            unit="share",
            n=500,
            interval=_interval(accuracy - 0.03, accuracy + 0.024),
        ),
        Measurement(
            metric="accuracy_delta",
            value=drop,
            unit="share",
            n=500,
            interval=_interval(drop - 0.008, drop + (0.008 if drop > -0.01 else 0.004)),
        ),
        Measurement(metric="f1_macro", value=accuracy - 0.001, unit="share", n=500),
        Measurement(metric="kl_divergence_mean", value=kl, unit="nats", n=500),
        Measurement(metric="kl_divergence_p99", value=kl * 9, unit="nats", n=500),
        Measurement(metric="top1_agreement", value=1 - flips, unit="share", n=500),
        Measurement(metric="flips", value=flips, unit="share", n=500),
        Measurement(metric="flips_p_value", value=0.73 if flips else 1.0, unit="", n=500),
    ]
    return tuple(made)


def _interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, method="paired block bootstrap, 20 pairs")


def _percentile(metric: str, value: float, needs: int, n: int, at: dict[str, str | int | float]) -> Measurement:
    if n < needs:
        return Measurement(metric=metric, value=None, unit="ms", at=at, n=n, reason=f"insufficient ({n} of {needs})")
    return Measurement(metric=metric, value=value, unit="ms", at=at, n=n)


def chain_effects(layers: int = 211) -> tuple[StepEffect, ...]:
    """What pruning, training and a quantizer with a quality floor say: removed, losses, a sensitivity of each layer."""
    draw = random.Random(3)
    names = [f"model.layers.{n // 7}.{part}" for n in range(layers) for part in (_LINEARS[n % 7],)]
    divergences = sorted((10 ** draw.uniform(-6, -1) for _ in names), reverse=True)
    wide = set(draw.sample(range(20), 9)) if layers >= 20 else {0}
    sensitivity = tuple(
        LayerSensitivity(layer=name, divergence=d, kept=index in wide)
        for index, (name, d) in enumerate(zip(names, divergences, strict=True))
    )
    return (
        StepEffect(
            technique="prune-structured",
            summary="3 of 12 heads and 461 of 1,536 neurons removed in each of 6 layers",
            changed=6,
            of=6,
            removed=5_312_064,
            seconds=4.2,
            warnings=("It was not trained after pruning: add a finetune step to get quality back.",),
        ),
        StepEffect(
            technique="finetune",
            summary="200 steps of 32 rows at a rate of 5e-05; loss 0.693 to 0.211",
            changed=74,
            of=74,
            seconds=312.0,
            losses=tuple((step, 0.2 + 0.5 * math.exp(-step / 60) + draw.uniform(0, 0.04)) for step in range(0, 201, 2)),
        ),
        StepEffect(
            technique="int8-dynamic",
            summary=f"{layers - len(wide)} of {layers} linear layers quantized, {len(wide)} kept",
            changed=layers - len(wide),
            of=layers,
            kept={names[index]: "as sensitive as the quality floor allows" for index in sorted(wide)},
            seconds=21.5,
            sensitivity=sensitivity,
            sensitivity_measure="KL divergence in nats, 64 rows",
        ),
    )


_LINEARS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
)  # fmt: skip


def report(name: str, spec: dict[str, Any], threads: int = 2) -> Report:
    """The report of one of :data:`VARIANTS`."""
    technique, _, _, _, _, size, *_, label = VARIANTS[name]
    effects = (
        (
            StepEffect(
                technique=technique,
                summary="36 of 37 linear layers quantized, 1 kept (classifier: too small)",
                changed=36,
                of=37,
                kept={"classifier": "fewer than 1,024 weights"},
                seconds=1.8,
            ),
        )
        if technique
        else ()
    )
    return Report(
        experiment=name,
        baseline=str(spec["baseline"]["name"]),
        task="text-classification",
        spec=spec,
        status="succeeded",
        measurements=measurements(name),
        effects=effects,
        artifact=ArtifactRecord(
            sha256="ab12" * 16,
            form="torch",
            label=label,
            bytes=int(size * 1e6),
            files={"model.safetensors": int(size * 1e6)},
            parameters=22_713_986,
            dtype="float16" if name == "fp16" else "bfloat16" if name == "bf16" else "float32",
        ),
        canary=Canary(
            passed=True,
            batch_difference=3e-6,
            source_difference=0.41 if technique else 2e-6,
            tolerance=1e-3,
            round_trip_difference=0.0,
            notes=("difference to the source is recorded, not judged: quantized",),
        ),
        environment=environment(threads),
        notes=("Padding is left out of the timing.",),
        reused=("model minilm-reviews (9c04)",),
        stage_seconds={"load": 1.2, "build": 3.4, "canary": 0.8, "measure": 18.2, "quality": 6.1, "report": 0.1},
    )


def study_report(names: list[str] | None = None, **changes: Any) -> StudyReport:
    """An ended study as records alone, no database."""
    spec = parse(study_spec(names, **changes))
    points = spec.expand()
    return StudyReport(
        name=spec.name,
        baseline=spec.baseline,
        spec=spec.model_dump(mode="json"),
        experiments=tuple(report(p.variant.name, p.canonical()) for p in points),
    )


def waiting_study(team: Team, names: list[str] | None = None, **changes: Any) -> Study:
    """A queued study of :data:`VARIANTS`."""
    return factories.study(team, **study_spec(names, **changes))


def run(experiment: Experiment, *, until: str = "succeeded", failure: Failure | None = None, **changes: Any) -> None:
    """Take the experiment through its life; ``until`` is running, succeeded or failed. A worker must be free.

    ``changes``: fields of the report of an experiment that succeeds.
    """
    attempt = factories.running(experiment)
    events = [
        Event(seq=1, t_ns=1, kind="stage", stage="load", state="started", fraction=0.0),
        Event(seq=2, t_ns=2, kind="log", message="model minilm-reviews, 22,713,986 parameters"),
        Event(seq=3, t_ns=3, kind="stage", stage="load", state="done", fraction=0.1),
        Event(seq=4, t_ns=4, kind="stage", stage="measure", state="started", fraction=0.4),
        Event(seq=5, t_ns=5, kind="progress", fraction=0.62, message="block 9 of 14", seconds_left=40),
        Event(seq=6, t_ns=6, kind="log", message="ratio so far 1.36 [1.27, 1.45]"),
    ]
    services.events_append(attempt_id=attempt.pk, number=attempt.number, events=events)
    if until == "running":
        return
    ended = (
        report(experiment.name, experiment.spec).model_copy(update=changes)
        if until == "succeeded"
        else factories.report(experiment, status="failed", failure=failure or out_of_memory())
    )
    services.report_record(attempt_id=attempt.pk, number=attempt.number, report=ended)


def out_of_memory() -> Failure:
    """A typical end."""
    return Failure(
        kind=FailureKind.OUT_OF_MEMORY,
        message="the measured process was killed at 2,012 MiB of 2,000 MiB",
        fix="Raise resources.memory_mib or lower the batch size.",
        field="resources.memory_mib",
        log_tail=("measure     baseline 20.9 ms", "\x1b[31mKilled\x1b[0m"),
    )


def ended_study(team: Team, *, failed: tuple[str, ...] = (), names: list[str] | None = None, **changes: Any) -> Study:
    """A study whose experiments have all ended, each through the services."""
    study = waiting_study(team, names, **changes)
    if not selectors.live_devices():
        factories.worker("cpu-a")
    for experiment in selectors.experiments(study):
        run(experiment, until="failed" if experiment.name in failed else "succeeded")
    return study
