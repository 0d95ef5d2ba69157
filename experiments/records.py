"""What an experiment says: typed records with units, valid as JSON.

Every number that leaves the engine is a :class:`Measurement`; every end that is not a number is a
:class:`Failure`. Undefined is a value: a measurement without a number carries the reason, never 0 and never NaN.
"""

from __future__ import annotations

import hashlib
import json
import math
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base of everything the engine says: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FailureKind(StrEnum):
    """Why an attempt ended without a result."""

    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    FALLBACK = "fallback"
    CANARY = "canary"
    NO_EFFECT = "no_effect"
    UNSUPPORTED = "unsupported"
    BAD_MODEL = "bad_model"
    BAD_DATASET = "bad_dataset"
    DOWNLOAD = "download"
    WORKER_LOST = "worker_lost"
    KILLED = "killed"
    DISK_FULL = "disk_full"
    RANK_FAILED = "rank_failed"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class Failure(Record):
    """One typed end: a sentence for a person, what to do, and the log's last lines."""

    kind: FailureKind
    message: str
    fix: str | None = None
    field: str | None = Field(
        default=None, description="Path in the spec that caused it, e.g. 'dataset.columns.label'."
    )
    detail: dict[str, Any] = Field(default_factory=dict)
    log_tail: tuple[str, ...] = ()


class ExperimentError(Exception):
    """Raised anywhere in the engine to end the experiment as a typed :class:`Failure`."""

    def __init__(
        self, kind: FailureKind, message: str, *, fix: str | None = None, field: str | None = None, **detail: Any
    ) -> None:
        super().__init__(message)
        self.failure = Failure(kind=kind, message=message, fix=fix, field=field, detail=detail)

    @classmethod
    def of(cls, failure: Failure) -> ExperimentError:
        """The exception that carries an existing failure."""
        error = cls(failure.kind, failure.message)
        error.failure = failure
        return error


def finite(value: Any) -> Any:
    """None for NaN and infinities, so that a record never holds what JSON cannot say."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def digest(data: Any) -> str:
    """SHA-256 of canonical JSON."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Interval(Record):
    """A confidence interval, in the unit of the value it belongs to."""

    low: float
    high: float
    confidence: float = 0.95
    method: str = Field(description="How it was made, e.g. 'paired block bootstrap, 20 pairs'.")

    def contains(self, value: float) -> bool:
        """True if ``low <= value <= high``."""
        return self.low <= value <= self.high


class Measurement(Record):
    """One number of one experiment.

    ``at`` holds the dimensions (``batch_size``, ``sequence_length``, ``rank``, ``collective``, ...), so one metric
    name can have many points. ``samples`` are all raw samples in ``unit``, where the value was made from samples.
    """

    metric: str
    value: Annotated[float | None, BeforeValidator(finite)] = None  # absent in an event line, where nulls are left out
    unit: str
    at: dict[str, str | int | float] = Field(default_factory=dict)
    interval: Interval | None = None
    n: int | None = Field(default=None, description="Number of samples or examples behind the value.")
    samples: tuple[float, ...] | None = None
    reason: str | None = Field(default=None, description="Why the value is missing or undefined.")
    note: str | None = None

    @model_validator(mode="after")
    def _missing_says_why(self) -> Measurement:
        if self.value is None and not self.reason:
            raise ValueError("a measurement without a value must say why in 'reason'")
        return self


class Label(StrEnum):
    """What an artifact really is (docs/measurement.md)."""

    DENSE = "dense"
    PACKED = "packed"
    WEIGHT_ONLY = "weight-only"
    FAKE_QUANT = "fake-quant"
    MASKED_SPARSE = "masked-sparse"


class LayerSensitivity(Record):
    """How much one layer alone, made narrow, moves the model's answers."""

    layer: str
    divergence: float = Field(description="Over the calibration rows; see StepEffect.sensitivity_measure.")
    kept: bool = Field(description="Left wide in the end.")


class StepEffect(Record):
    """Proof of effect of one recipe step: what it changed, in words and numbers."""

    technique: str
    summary: str = Field(description="E.g. '38 of 39 linear layers quantized, 1 kept (classifier: too small)'.")
    changed: int
    of: int
    kept: dict[str, str] = Field(default_factory=dict, description="Layer name -> why it was left alone.")
    label: Label | None = Field(default=None, description="Where this build differs from the technique's own label.")
    seconds: float | None = None
    removed: int | None = Field(default=None, description="Parameters that are gone.")
    zeros: int | None = Field(default=None, description="Weights that were set to zero and are still stored.")
    warnings: tuple[str, ...] = Field(default=(), description="What a reader of the result must know.")
    losses: tuple[tuple[int, float], ...] = Field(default=(), description="(step, loss) of a training, thinned out.")
    sensitivity: tuple[LayerSensitivity, ...] = Field(default=(), description="Most sensitive layer first.")
    sensitivity_measure: str | None = Field(default=None, description="E.g. 'KL divergence in nats, 64 rows'.")


class ArtifactRecord(Record):
    """What was saved and would be deployed."""

    sha256: str = Field(description="Content address over all files.")
    form: str
    label: Label
    bytes: int = Field(description="Size on disk of the weights files, external data included.")
    files: dict[str, int] = Field(description="Relative path -> bytes.")
    parameters: int
    dtype: str
    path: str | None = None


class Canary(Record):
    """What was checked before timing."""

    passed: bool
    batch_difference: float | None = Field(default=None, description="Max |batch 1 - padded batch| over logits.")
    source_difference: float | None = Field(default=None, description="Max |artifact - source model| over logits.")
    tolerance: float | None = None
    round_trip_difference: float | None = Field(default=None, description="Max |fresh process - builder| over logits.")
    notes: tuple[str, ...] = ()


class DeviceFacts(Record):
    """One device that an attempt may lease."""

    name: str = Field(description="E.g. 'cpu:0', 'cuda:1'.")
    kind: Literal["cpu", "cuda"]
    model: str
    memory_bytes: int | None = None
    cores: tuple[int, ...] = ()
    compute_capability: tuple[int, int] | None = None


class Ceilings(Record):
    """The machine's own limits as measured, for the share of the limit."""

    copy_bytes_per_s: float
    gemm_flops_per_s: dict[str, float] = Field(description="dtype -> FLOP/s (multiply and add counted apart).")
    threads: int
    source: str = "measured by a large copy and the best of several matrix products"


class Environment(Record):
    """The fingerprint: where and with what a number was made."""

    model: str
    model_revision: str | None = None
    model_sha256: str
    model_licence: str | None = Field(default=None, description="As the source model's own files state it.")
    dataset: str | None = None
    dataset_sha256: str | None = None
    workload_sha256: str
    spec_sha256: str
    code_version: str
    hostname: str
    cpu: str
    isa: tuple[str, ...]
    cores: tuple[int, ...]
    threads: int
    memory_bytes: int
    devices: tuple[DeviceFacts, ...]
    driver: str | None = None
    clock_mhz: float | None = None
    libraries: dict[str, str]
    python: str
    platform: str
    seed: int
    ceilings: Ceilings | None = None

    #: Compared between experiments and guarding gates; the rest is recorded only.
    def compared(self) -> dict[str, Any]:
        """The part of the fingerprint that must agree for two numbers to be comparable."""
        return {
            "model weights": self.model_sha256,
            "data": self.dataset_sha256,
            "workload": self.workload_sha256,
            "hardware": (self.cpu, self.isa, tuple(d.model for d in self.devices)),
            "libraries": dict(sorted(self.libraries.items())),
            "threads": self.threads,
        }


class Report(Record):
    """All that one experiment says."""

    schema_version: Literal[1] = 1
    experiment: str
    baseline: str
    task: str
    spec: dict[str, Any]
    status: Literal["succeeded", "failed", "cancelled"]
    failure: Failure | None = None
    measurements: tuple[Measurement, ...] = ()
    effects: tuple[StepEffect, ...] = ()
    artifact: ArtifactRecord | None = None
    canary: Canary | None = None
    environment: Environment | None = None
    notes: tuple[str, ...] = ()
    reused: tuple[str, ...] = Field(default=(), description="Work that came from the cache.")
    stage_seconds: dict[str, float] = Field(default_factory=dict)
    unpaired: bool = False

    def find(self, metric: str, **at: str | int | float) -> Measurement | None:
        """The first measurement of ``metric`` whose dimensions include ``at``."""
        for measurement in self.measurements:
            if measurement.metric == metric and all(measurement.at.get(k) == v for k, v in at.items()):
                return measurement
        return None


class StudyReport(Record):
    """What ``run --json`` writes and what REST results return."""

    schema_version: Literal[1] = 1
    name: str
    baseline: str
    spec: dict[str, Any]
    experiments: tuple[Report, ...]
    verdict: str = Field(default="", description="One sentence on what the table says.")


class Event(Record):
    """One JSON line of the engine's event stream (at most 64 KiB)."""

    v: Literal[1] = 1
    seq: int
    t_ns: int = Field(description="Wall clock, nanoseconds since the epoch.")
    kind: Literal["stage", "progress", "log", "measurement", "report", "failure"]
    stage: str | None = None
    state: Literal["started", "done", "skipped"] | None = None
    message: str | None = None
    fraction: float | None = Field(default=None, ge=0, le=1, description="Of the whole experiment.")
    seconds_left: float | None = None
    measurement: Measurement | None = None
    report_path: str | None = Field(default=None, description="File that holds the report as JSON.")
    failure: Failure | None = None
