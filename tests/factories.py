"""Makes rows and records for tests: real ones, through the same code that serves people wherever there is such code."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

from experiments.records import ArtifactRecord, DeviceFacts, Interval, Label, Measurement, Report
from experiments.spec import StudySpec, parse
from webapp.accounts.models import Membership, Role, Team, User
from webapp.core.clock import database_now
from webapp.runs import services
from webapp.runs.models import Attempt, Event, Experiment, Lease, Study, Worker
from webapp.runs.scheduling import tick

_count = itertools.count(1)


def team(name: str | None = None) -> Team:
    """A team of its own."""
    number = next(_count)
    return Team.objects.create(name=name or f"Team {number}", slug=f"team-{number}")


def user(of: Team | None = None, role: Role = Role.SUBMITTER, password: str | None = None) -> User:
    """A person, a member of ``of`` if it is given."""
    made = User.objects.create_user(username=f"person{next(_count)}", password=password)
    if of is not None:
        Membership.objects.create(team=of, user=made, role=role)
    return made


def spec(names: tuple[str, ...] = ("fp32", "int8"), **changes: Any) -> StudySpec:
    """A valid study of a demo model; the first name is the baseline, the others are quantized."""
    return parse(
        {
            "name": "a study",
            "model": {"source": "demo", "name": "minilm-reviews"},
            "task": "text-classification",
            "dataset": {"source": "demo", "name": "reviews", "limit": 50},
            "baseline": names[0],
            "experiments": [
                {"name": names[0]},
                *({"name": name, "recipe": [{"technique": "int8-dynamic"}]} for name in names[1:]),
            ],
            **changes,
        }
    )


def study(of: Team | None = None, names: tuple[str, ...] = ("fp32", "int8"), **changes: Any) -> Study:
    """A queued study, its rows written directly: no preflight, so nothing about this machine matters."""
    of = of or team()
    made_of = spec(names, **changes)
    made = Study.objects.create(
        team=of,
        name=made_of.name,
        spec=made_of.model_dump(mode="json"),
        baseline=made_of.baseline,
        priority=made_of.priority,
        tags=list(made_of.tags),
    )
    for index, point in enumerate(made_of.expand()):
        row = Experiment.objects.create(
            team=of,
            study=made,
            index=index,
            name=point.variant.name,
            spec=point.canonical(),
            spec_sha256=point.sha256(),
            priority=made_of.priority,
            device_kind=point.resources.device,
            device_count=point.devices,
            labels=made_of.labels,
            last_seq=1,
        )
        Event.objects.create(
            experiment=row, seq=1, at=database_now(), kind="status", data={"subject": "experiment", "to": "queued"}
        )
    return made


def cpu(index: int = 0, cores: tuple[int, ...] = (0, 1)) -> DeviceFacts:
    """A CPU device."""
    return DeviceFacts(name=f"cpu:{index}", kind="cpu", model="a CPU", cores=cores)


def cuda(index: int = 0) -> DeviceFacts:
    """A CUDA device."""
    return DeviceFacts(name=f"cuda:{index}", kind="cuda", model="a GPU", memory_bytes=80 << 30)


def worker(name: str = "w1", *devices: DeviceFacts, host: str = "host1", **changes: Any) -> Worker:
    """A living worker; one CPU device unless told otherwise."""
    return services.worker_register(name=name, host=host, pid=1, devices=list(devices) or [cpu()], **changes)


def leased(of: Experiment) -> Attempt:
    """The attempt that the scheduler gives the experiment; there must be a free worker."""
    tick(actor="test")
    return Attempt.objects.get(experiment=of, status="leased")


def running(of: Experiment) -> Attempt:
    """The claimed attempt of the experiment."""
    found = leased(of)
    claimed = services.attempt_claim(attempt_id=found.pk, number=found.number, worker_name=found.worker_name)
    assert claimed is not None
    return claimed


def report(of: Experiment, status: str = "succeeded", **changes: Any) -> Report:
    """What an engine could say of this experiment."""
    return Report.model_validate(
        {
            "experiment": of.name,
            "baseline": str(of.spec["baseline"]["name"]),
            "task": "text-classification",
            "spec": of.spec,
            "status": status,
            "measurements": measurements() if status == "succeeded" else (),
            "artifact": artifact() if status == "succeeded" else None,
            **changes,
        }
    )


def measurements(p50: float = 10.0, speed: float = 1.0, accuracy: float = 0.9) -> tuple[Measurement, ...]:
    """Latency, speed-up and accuracy."""
    near = {"confidence": 0.95, "method": "a bootstrap"}
    return (
        Measurement(metric="latency_p50_ms", value=p50, unit="ms", at={"batch_size": 1}, n=3, samples=(p50,) * 3),
        Measurement(
            metric="speedup_p50",
            value=speed,
            unit="ratio",
            at={"batch_size": 1},
            interval=Interval(low=speed * 0.98, high=speed * 1.02, **near),
        ),
        Measurement(metric="accuracy", value=accuracy, unit="fraction", n=500),
        Measurement(
            metric="latency_p99_ms", value=None, unit="ms", at={"batch_size": 1}, reason="insufficient (3 of 662)"
        ),
    )


def artifact(size: int = 1000, label: Label = Label.DENSE) -> ArtifactRecord:
    """An artifact."""
    return ArtifactRecord(
        sha256="ab" * 32, form="torch", label=label, bytes=size, files={"a": size}, parameters=10, dtype="float32"
    )


def failure(of: Experiment) -> dict[str, Any]:
    """Why the experiment failed."""
    of.refresh_from_db()
    assert of.failure is not None
    found: dict[str, Any] = of.failure
    return found


def expire(attempt: Attempt) -> None:
    """Let the attempt's lease run out."""
    Attempt.objects.filter(pk=attempt.pk).update(lease_expires_at=database_now() - timedelta(seconds=1))


def held() -> set[str]:
    """What is leased now."""
    return set(Lease.objects.values_list("resource", flat=True))
