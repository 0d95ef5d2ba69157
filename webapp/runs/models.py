"""Data and constraints of studies, experiments, attempts and what they said. No rules here: see services.py."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from webapp.core.models import TeamOwned


class Status(models.TextChoices):
    """Where an experiment is."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


class AttemptStatus(models.TextChoices):
    """Where one execution is. ``lost``: its worker fell silent or handed it back; the experiment is queued again."""

    LEASED = "leased"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


class Study(TeamOwned):
    """Experiments over one model with one baseline, workload and quality task. Its status is derived."""

    name = models.CharField(max_length=200)
    spec = models.JSONField(help_text="Canonical StudySpec.")
    baseline = models.CharField(max_length=200)
    priority = models.PositiveSmallIntegerField(default=50)
    tags = models.JSONField(default=list)
    trigger = models.JSONField(default=dict, help_text="repository, commit, branch, pull_request, url")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_via = models.CharField(max_length=20, default="web", help_text="web, api, demo")

    class Meta:
        indexes = [models.Index(fields=["team", "-created_at", "-id"], name="study_by_time")]

    def __str__(self) -> str:
        return self.name


class Experiment(TeamOwned):
    """One spec: a point on the chart."""

    study = models.ForeignKey(Study, on_delete=models.CASCADE, related_name="experiments")
    index = models.PositiveIntegerField(help_text="Order within the study; the baseline is 0.")
    name = models.CharField(max_length=400)
    spec = models.JSONField(help_text="Canonical ExperimentSpec, complete in itself.")
    spec_sha256 = models.CharField(max_length=64)
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.QUEUED)
    failure = models.JSONField(null=True, help_text="records.Failure")
    preflight = models.JSONField(default=dict, help_text="What submission found: needs, notes.")
    priority = models.PositiveSmallIntegerField(default=50)
    device_kind = models.CharField(max_length=8, default="cpu")
    device_count = models.PositiveIntegerField(default=1)
    labels = models.JSONField(default=dict, help_text="A worker must have all of these labels.")
    cancel_requested_at = models.DateTimeField(null=True)
    queued_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    stage = models.CharField(max_length=60, blank=True)
    message = models.CharField(max_length=300, blank=True, help_text="What it does just now, e.g. step and loss.")
    fraction = models.FloatField(default=0.0)
    seconds_left = models.FloatField(null=True)
    last_seq = models.PositiveBigIntegerField(default=0, help_text="Sequence number of the newest event.")
    accepted = models.OneToOneField("Attempt", null=True, on_delete=models.SET_NULL, related_name="accepted_for")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["study", "index"], name="experiment_index_once"),
            models.UniqueConstraint(fields=["study", "name"], name="experiment_name_once"),
        ]
        indexes = [
            models.Index(fields=["status", "-priority", "queued_at"], name="experiment_queue"),
            models.Index(fields=["team", "status"], name="experiment_team_status"),
        ]

    def __str__(self) -> str:
        return self.name


class Worker(models.Model):
    """A process that leases devices and runs attempts. Workers serve all teams of the installation."""

    name = models.CharField(max_length=100, unique=True)
    host = models.CharField(max_length=200)
    pid = models.PositiveIntegerField(default=0)
    devices = models.JSONField(default=list, help_text="list of records.DeviceFacts")
    facts = models.JSONField(default=dict, help_text="ISA, memory, ceilings, versions, labels")
    labels = models.JSONField(default=dict)
    draining = models.BooleanField(default=False)
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True, help_text="When it said goodbye; null while it should be alive.")

    def __str__(self) -> str:
        return self.name


class Attempt(TeamOwned):
    """One execution of an experiment. ``number`` is the fencing token: a late write of an old number is refused."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    status = models.CharField(max_length=12, choices=AttemptStatus.choices, default=AttemptStatus.LEASED)
    worker = models.ForeignKey(Worker, null=True, on_delete=models.SET_NULL, related_name="attempts")
    worker_name = models.CharField(max_length=100)
    devices = models.JSONField(default=list, help_text="Names of the leased devices.")
    lease_expires_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True, help_text="When the message was last given to the broker.")
    claimed_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    failure = models.JSONField(null=True)
    log = models.CharField(max_length=400, blank=True, help_text="Path of the log below LOG_ROOT.")
    memory_bytes = models.PositiveBigIntegerField(null=True, help_text="Last sample of the whole process tree.")
    counts_as_lost = models.BooleanField(default=False, help_text="Lost by a fault, not handed back by a stop.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["experiment", "number"], name="attempt_number_once"),
            models.UniqueConstraint(
                fields=["experiment"], condition=Q(status__in=["leased", "running"]), name="attempt_one_alive"
            ),
        ]
        indexes = [models.Index(fields=["status", "lease_expires_at"], name="attempt_lease")]

    def __str__(self) -> str:
        return f"attempt {self.number} of experiment {self.experiment_id}"


class Lease(models.Model):
    """What an attempt holds of a host: the row's existence is the lock.

    A CUDA device is one resource, ``cuda:1``. A CPU device is its cores, ``core:0`` and ``core:1``, so that two
    workers that cut one host's cores differently still never hold one core twice.
    """

    host = models.CharField(max_length=200)
    resource = models.CharField(max_length=40)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="leases")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "resource"], name="resource_leased_once")]

    def __str__(self) -> str:
        return f"{self.resource} of {self.host}"


class SchedulerLock(models.Model):
    """The one row that whoever schedules holds meanwhile."""

    name = models.CharField(max_length=20, primary_key=True)
    ticked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name


class Event(models.Model):
    """One thing that happened to an experiment, in order over all its attempts."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="events")
    attempt_number = models.PositiveIntegerField(default=0)
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField(help_text="By the database's clock.")
    kind = models.CharField(max_length=20, help_text="status, stage, progress, log, measurement, failure, report")
    actor = models.CharField(max_length=150, blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["experiment", "seq"], name="event_seq_once")]

    def __str__(self) -> str:
        return f"{self.seq} {self.kind}"


class AttemptReport(models.Model):
    """The whole report of an accepted attempt, samples included; kept apart so that lists stay light."""

    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, related_name="report")
    data = models.JSONField(help_text="records.Report")

    def __str__(self) -> str:
        return f"report of {self.attempt}"


class MeasurementRow(TeamOwned):
    """One number of an accepted report, for tables, filters and charts."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="measurements")
    metric = models.CharField(max_length=60)
    value = models.FloatField(null=True)
    unit = models.CharField(max_length=30)
    at = models.JSONField(default=dict)
    low = models.FloatField(null=True)
    high = models.FloatField(null=True)
    n = models.PositiveIntegerField(null=True)
    reason = models.TextField(blank=True)
    note = models.TextField(blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["experiment", "metric"], name="measurement_by_experiment"),
            models.Index(fields=["team", "metric"], name="measurement_by_team"),
        ]

    def __str__(self) -> str:
        return f"{self.metric} {self.value} {self.unit}"


class Artifact(TeamOwned):
    """What an accepted attempt saved. Its files lie once in the storage, by their hash; experiments share them."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="artifacts")
    attempt = models.OneToOneField(Attempt, null=True, on_delete=models.CASCADE, related_name="artifact")
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField(help_text="Of the weights alone.")
    label = models.CharField(max_length=20)
    form = models.CharField(max_length=10)
    files = models.JSONField(default=dict, help_text="Relative name -> bytes.")
    stored_at = models.DateTimeField(null=True, help_text="When all files were in the storage.")
    removed_at = models.DateTimeField(null=True, help_text="When they were taken out of it.")
    problem = models.CharField(max_length=400, blank=True, help_text="Why they could not be stored.")

    class Meta:
        indexes = [models.Index(fields=["sha256"], name="artifact_by_hash")]

    def __str__(self) -> str:
        return self.sha256[:12]


class IdempotencyKey(TeamOwned):
    """The same key of the same team twice gives the first study."""

    key = models.CharField(max_length=200)
    body_sha256 = models.CharField(max_length=64)
    study = models.ForeignKey(Study, on_delete=models.CASCADE, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "key"], name="idempotency_key_once")]

    def __str__(self) -> str:
        return self.key
