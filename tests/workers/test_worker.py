"""A real worker: Celery over a real Redis, the real engine, a small real model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.conf import settings
from django.db import connection

from experiments.spec import StudySpec, parse
from tests import factories
from tests.experiments.tiny_models import tiny_classifier
from tests.waiting import wait_for
from webapp.core import process_tree
from webapp.runs import queue, selectors, services
from webapp.runs.models import Attempt, Experiment, Study, Worker
from webapp.runs.redis_server import redis_command

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]

WORDS = ("good", "bad", "film", "plot", "nice", "dull", "the", "was")


@pytest.fixture
def redis(home: Path) -> Iterator[None]:
    socket = Path(settings.BROKER_URL.removeprefix("redis+socket://"))
    process = subprocess.Popen(redis_command(socket, home), stdout=subprocess.DEVNULL)
    wait_for(queue.broker_answers, 10)
    yield
    process.terminate()
    process.wait()


class LiveWorker:
    """``manage.py worker`` as a person starts it."""

    def __init__(self, home: Path) -> None:
        self.log = home / "worker.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "worker", "--name", "w1", "--devices", "cpu:0"],
                cwd=settings.BASE_DIR,
                env=dict(os.environ),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        began = time.monotonic()
        wait_for(lambda: Worker.objects.filter(name="w1", pid=self.process.pid, stopped_at=None).exists(), 60)
        self.started_in_s = time.monotonic() - began

    def end(self, number: int) -> None:
        tree = process_tree.descendants(self.process.pid)
        self.process.send_signal(number)
        self.process.wait(timeout=20)
        process_tree.kill([p for p in tree if p.is_running()] if number == signal.SIGKILL else [])


@pytest.fixture
def worker(home: Path, redis: None) -> Iterator[LiveWorker]:
    made = LiveWorker(home)
    yield made
    if made.process.poll() is None:
        made.end(signal.SIGTERM)
    assert leftovers(home) == [], "a worker must leave no process"


def leftovers(home: Path) -> list[str]:
    """Command lines of processes that still run for this home."""
    found = []
    for process in process_tree.marked({"STEELYARD_HOME": str(home), "STEELYARD_WORKER": "w1"}):
        try:
            if "redis-server" not in (words := process.cmdline())[0]:
                found.append(" ".join(words))
        except (psutil.NoSuchProcess, IndexError):
            continue
    return found


def tiny_study(tmp_path: Path, min_seconds: float) -> StudySpec:
    rows = "".join(f"{WORDS[i % 8]} {WORDS[(i * 3) % 8]} film,{('neg', 'pos')[i % 2]}\n" for i in range(40))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    return parse(
        {
            "name": "tiny",
            "model": {"source": "path", "path": str(tiny_classifier(tmp_path / "model", WORDS, ("neg", "pos")))},
            "dataset": {"source": "path", "path": str(tmp_path / "rows.csv")},
            "workload": {"batch_sizes": [1], "sequence_length": 8, "min_seconds": min_seconds, "min_samples": 4},
            "baseline": "fp32",
            "experiments": [{"name": "fp32"}, {"name": "int8", "recipe": [{"technique": "int8-dynamic"}]}],
        }
    )


def submit(tmp_path: Path, min_seconds: float) -> tuple[Study, Experiment]:
    study = services.study_submit(team=factories.team(), spec=tiny_study(tmp_path, min_seconds))
    return study, study.experiments.get(index=0)


def measuring(experiment: Experiment) -> bool:
    experiment.refresh_from_db()
    assert experiment.status in ("queued", "running"), experiment.failure
    return experiment.stage == "measure"


def test_a_study_runs_from_submission_to_verdict(worker: LiveWorker, tmp_path: Path) -> None:
    """FC-095: the engine starts child processes of its own under Celery's prefork pool."""
    study, first = submit(tmp_path, min_seconds=0.2)
    wait_for(lambda: selectors.study_status(study).status not in ("queued", "running"), 240)
    rows = selectors.experiments(study)
    assert [(row.status, row.failure) for row in rows] == [("succeeded", None)] * 2
    report = selectors.study_report(study.team, study.pk)
    own = report.experiments[0].find("kl_divergence_mean")
    assert own is not None
    assert own.value is not None
    assert own.value <= 1e-7
    assert report.experiments[1].find("speedup_p50", batch_size=1) is not None
    assert report.verdict
    first.refresh_from_db()
    stages = [e.data["stage"] for e in selectors.events(first, limit=1000) if e.kind == "stage"]
    assert stages[0] == "load"
    assert stages[-1] == "report"
    assert "[measure] started" in selectors.log_slice(first)[0]
    assert factories.held() == set()


def test_cancel_and_stop_end_a_running_experiment_with_all_its_processes(
    worker: LiveWorker, tmp_path: Path, home: Path
) -> None:
    study, first = submit(tmp_path, min_seconds=300)
    second = study.experiments.get(index=1)
    wait_for(lambda: measuring(first), 120)
    began = time.monotonic()
    services.experiment_cancel(team=study.team, experiment_id=first.pk, actor="someone")
    wait_for(lambda: Experiment.objects.get(pk=first.pk).status == "cancelled", 10)
    assert time.monotonic() - began < 10

    wait_for(lambda: measuring(second), 120)
    worker.end(signal.SIGTERM)
    assert leftovers(home) == []
    second.refresh_from_db()
    attempt = second.attempts.get()
    assert (second.status, attempt.status, attempt.counts_as_lost) == ("queued", "lost", False)
    assert Worker.objects.get().stopped_at is not None


@pytest.mark.slow
def test_a_worker_killed_while_it_runs_is_swept_by_its_next_life(
    worker: LiveWorker, tmp_path: Path, home: Path
) -> None:
    """FC-045: the whole worker is killed."""
    study, first = submit(tmp_path, min_seconds=300)
    wait_for(lambda: measuring(first), 120)
    worker.process.kill()
    worker.process.wait()
    again = LiveWorker(home)
    try:
        wait_for(lambda: Attempt.objects.filter(experiment=first, status="lost").exists(), 30)
        lost = first.attempts.get(number=1)
        assert lost.counts_as_lost
        wait_for(lambda: first.attempts.filter(number=2, status="running").exists(), 30)
    finally:
        services.study_cancel(team=study.team, study_id=study.pk, actor="someone")
        again.end(signal.SIGTERM)
        connection.close()
    assert leftovers(home) == []
