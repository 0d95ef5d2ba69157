"""The supervisor's process: whatever happens to engine or supervisor, the attempt has one end and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from tests import factories
from tests.waiting import wait_for
from webapp.core import process_tree
from webapp.core.errors import Conflict
from webapp.runs import selectors, services
from webapp.runs.models import Attempt, AttemptReport, Experiment
from workers import reaper, tasks
from workers.marks import attempt_mark, environment_of

pytestmark = pytest.mark.django_db(transaction=True)


def engine(habit: str) -> list[str]:
    return [sys.executable, "-m", "tests.workers.engines", habit, "{events_fd}", "{folder}"]


@pytest.fixture
def experiment(home: Path) -> Experiment:
    factories.worker("w1", host="h")
    return factories.study(names=("fp32",)).experiments.get()


def supervised(of: Experiment, habit: str) -> Experiment:
    """Lease, claim, run and end the experiment with this engine."""
    attempt = factories.leased(of)
    assert tasks.execute(attempt.pk, attempt.number, engine(habit))
    of.refresh_from_db()
    return of


def test_what_an_attempt_saved_is_in_the_storage_when_it_has_ended(experiment: Experiment, home: Path) -> None:
    ended = supervised(experiment, "deliver")
    assert ended.status == "succeeded"
    artifact = selectors.artifact_of(ended)
    assert artifact is not None
    assert artifact.stored_at is not None
    assert (home / "artifacts" / "ab" / ("ab" * 32) / "model.onnx").read_bytes() == b"weights"


class Running:
    """A supervisor that runs an engine which never ends by itself."""

    def __init__(self, of: Experiment) -> None:
        leased = factories.leased(of)
        attempt = services.attempt_claim(
            attempt_id=leased.pk, number=leased.number, worker_name="w1", log=f"0/{leased.pk}.log"
        )
        assert attempt is not None
        self.attempt = attempt
        self.mark = attempt_mark(attempt.pk, attempt.number)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workers.supervisor", str(attempt.pk), str(attempt.number), *engine("linger")],
            env=environment_of(attempt.pk, attempt.number, "w1"),
        )
        wait_for(lambda: Experiment.objects.get(pk=of.pk).stage == "measure")

    def left(self) -> list[int]:
        return [process.pid for process in process_tree.marked(self.mark)]


@pytest.fixture
def running(experiment: Experiment) -> Iterator[Running]:
    made = Running(experiment)
    yield made
    made.process.kill()
    made.process.wait()
    process_tree.kill_marked(made.mark)


def test_a_success_is_recorded_with_its_events_and_its_log(experiment: Experiment) -> None:
    supervised(experiment, "succeed")
    assert (experiment.status, experiment.fraction, experiment.stage) == ("succeeded", 1.0, "load")
    report = selectors.report_of(experiment)
    assert report is not None
    assert report.find("latency_p50_ms", batch_size=1) is not None
    kinds = [event.kind for event in selectors.events(experiment)]
    assert kinds == ["status"] * 4 + ["stage", "progress", "log", "measurement"] + ["status"] * 2
    text, _ = selectors.log_slice(experiment)
    assert sorted(text.splitlines()) == ["[load] started", "half way", "loading"]
    assert factories.held() == set()
    assert not any((Path(settings.STEELYARD_HOME) / "attempts").iterdir())


def test_a_typed_failure_of_the_engine_is_kept(experiment: Experiment) -> None:
    supervised(experiment, "fail")
    assert experiment.status == "failed"
    assert experiment.failure == {
        "kind": "canary",
        "message": "outputs are not finite",
        "fix": None,
        "field": None,
        "detail": {},
        "log_tail": [],
    }


def test_an_engine_killed_by_the_kernel_fails_as_killed(experiment: Experiment) -> None:
    """FC-045."""
    supervised(experiment, "killed")
    assert experiment.status == "failed"
    assert factories.failure(experiment)["kind"] == "killed"
    assert "killed (signal 9), probably out of memory" in factories.failure(experiment)["message"]
    assert factories.failure(experiment)["detail"]["last_memory_bytes"] > 0
    assert factories.failure(experiment)["log_tail"] == ["about to need a lot"]
    assert "about to need a lot" in selectors.log_slice(experiment)[0]


def test_a_message_delivered_twice_runs_the_engine_once(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """FC-043: the second delivery finds the attempt claimed, exits, and there is one result."""
    monkeypatch.setenv("COUNTER", str(tmp_path / "counter"))
    attempt = factories.leased(experiment)
    ran: list[bool] = []

    def deliver() -> None:
        ran.append(tasks.execute(attempt.pk, attempt.number, engine("succeed")))
        connection.close()

    threads = [threading.Thread(target=deliver) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ran) == [False, False, True]
    assert (tmp_path / "counter").read_text() == "ran\n"
    assert AttemptReport.objects.count() == 1


def test_a_cancelled_experiment_ends_within_ten_seconds_with_all_descendants(
    running: Running, experiment: Experiment
) -> None:
    began = time.monotonic()
    services.experiment_cancel(team=experiment.team, experiment_id=experiment.pk, actor="someone")
    assert running.process.wait(timeout=10) == 0
    assert time.monotonic() - began < 10
    experiment.refresh_from_db()
    assert experiment.status == "cancelled"
    assert running.left() == []
    assert factories.held() == set()


def test_a_stopping_worker_hands_the_experiment_back_without_fault(running: Running, experiment: Experiment) -> None:
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=10) == 0
    experiment.refresh_from_db()
    running.attempt.refresh_from_db()
    assert (experiment.status, running.attempt.status) == ("queued", "lost")
    assert not running.attempt.counts_as_lost
    assert running.left() == []


def test_an_engine_whose_lease_was_given_away_is_ended_and_writes_nothing(
    running: Running, experiment: Experiment
) -> None:
    services.attempt_lost(attempt_id=running.attempt.pk, number=1, actor="reaper", reason="silent")
    assert running.process.wait(timeout=10) == 0
    experiment.refresh_from_db()
    assert experiment.status == "queued"
    assert running.left() == []


def test_what_a_killed_worker_left_is_swept_when_it_starts_again(running: Running, experiment: Experiment) -> None:
    running.process.kill()
    running.process.wait()
    assert reaper.sweep(worker_name="w1") == 1
    assert running.left() == []
    experiment.refresh_from_db()
    assert experiment.status == "queued"
    assert Attempt.objects.get().counts_as_lost


def test_the_sweep_leaves_other_installations_alone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "STEELYARD_HOME", Path(os.environ["STEELYARD_HOME"]) / "another")
    assert process_tree.marked({"STEELYARD_WORKER": "w1", "STEELYARD_HOME": str(settings.STEELYARD_HOME)}) == []
    assert len(running.left()) > 3


def test_a_second_worker_of_the_same_name_is_refused_while_the_first_lives(home: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "celery"])
    services.worker_register(name="w1", host="h", pid=first.pid, devices=[factories.cpu()])
    with pytest.raises(Conflict, match="already runs here"):
        reaper.refuse_namesake(worker_name="w1", host="h")
    reaper.refuse_namesake(worker_name="w2", host="h")
    first.kill()
    first.wait()
    reaper.refuse_namesake(worker_name="w1", host="h")
