"""Observations as the pipeline makes them, with samples chosen by the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import catalog
from experiments.protocols import Block, Observations, Outputs, Task
from experiments.records import ArtifactRecord, Ceilings, DeviceFacts, Label, Measurement
from experiments.spec import ExperimentSpec, parse

MS = 1_000_000


def spec(*, candidate: str = "small", task: Task = "text-classification", **more: Any) -> ExperimentSpec:
    """An experiment beside a baseline called 'base'; ``candidate='base'`` gives the baseline's own."""
    study = parse(
        {
            "name": "metrics",
            "model": {"source": "demo", "name": "minilm-reviews"},
            "task": task,
            "workload": {"batch_sizes": [1], "sequence_length": 16, "new_tokens": 5},
            "baseline": "base",
            "experiments": [{"name": "base"}, {"name": "small"}],
            **more,
        }
    )
    return next(e for e in study.expand() if e.variant.name == candidate)


def artifact(size: int = 1000, parameters: int = 250, label: Label = Label.DENSE) -> ArtifactRecord:
    """An artifact of ``size`` bytes."""
    return ArtifactRecord(
        sha256="0", form="torch", label=label, bytes=size, files={"w": size}, parameters=parameters, dtype="float32"
    )


def blocks(
    baseline: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]], batch_size: int = 1
) -> tuple[Block, ...]:
    """Pairs of blocks from latencies in ms."""
    made = []
    for pair, sides in enumerate(zip(baseline, candidate, strict=True)):
        for side, times in zip(("baseline", "candidate"), sides, strict=True):
            ns = tuple(round(t * MS) for t in times)
            made.append(Block(side=side, pair=pair, batch_size=batch_size, latency_ns=ns, wall_ns=sum(ns)))  # type: ignore[arg-type]
    return tuple(made)


def generated(side: str, pair: int, requests: int, ttft: float, tpot: float, tokens: int = 5) -> Block:
    """A block of generations of ``tokens`` tokens each: times in ms."""
    latency = ttft + tpot * (tokens - 1)
    return Block(
        side=side,  # type: ignore[arg-type]
        pair=pair,
        batch_size=1,
        latency_ns=(round(latency * MS),) * requests,
        ttft_ns=(round(ttft * MS),) * requests,
        token_gaps_ns=(round(tpot * MS),) * (requests * max(0, tokens - 1)),
        tokens_out=tokens * requests,
        wall_ns=round(latency * MS) * requests,
    )


def observations(experiment: ExperimentSpec | None = None, **more: Any) -> Observations:
    """Observations of ``experiment``; anything not given is missing."""
    experiment = experiment or spec()
    assert experiment.task is not None
    fields: dict[str, Any] = {
        "spec": experiment,
        "task": experiment.task,
        "is_baseline": experiment.is_baseline,
        "artifact": artifact(),
        "baseline_artifact": artifact(),
        **more,
    }
    return Observations(**fields)


def classified(logits: Any, targets: Any = None) -> Outputs:
    """Outputs of a classifier."""
    return Outputs(
        logits=np.asarray(logits, dtype=np.float32), targets=None if targets is None else np.asarray(targets)
    )


def ceilings(copy: float = 1e10, **gemm: float) -> Ceilings:
    """Ceilings of a machine with two threads."""
    return Ceilings(copy_bytes_per_s=copy, gemm_flops_per_s=gemm or {"float32": 1e11}, threads=2)


def cpu(cores: int = 2, model: str = "AMD EPYC") -> tuple[DeviceFacts, ...]:
    """One CPU device."""
    return (DeviceFacts(name="cpu:0", kind="cpu", model=model, cores=tuple(range(cores))),)


def measured(seen: Observations) -> dict[str, Measurement]:
    """Every metric of the task, by name (the first of each)."""
    found: dict[str, Measurement] = {}
    for metric in catalog.metrics():
        if seen.task in metric.tasks:
            for measurement in metric.measure(seen):
                found.setdefault(measurement.metric, measurement)
    return found
