"""``steelyard submit`` against a real server: what a CI job sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments.records import Measurement
from tests import factories
from tests.webapp.api.conftest import SPEC, Account, account
from webapp.accounts.services import api_key_revoke
from webapp.runs.models import Study

pytestmark = pytest.mark.django_db(transaction=True)


def command(server: Any, ours: Account, spec: Path, *more: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "experiments", "submit", str(spec), "--server", server.url, *more]
    environment = {**os.environ, "STEELYARD_API_KEY": ours.raw, "no_proxy": "*"}
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def write(path: Path, spec: dict[str, Any]) -> Path:
    path.write_text(json.dumps(spec))
    return path


def submitted() -> Study:
    """The study that the command queues, once it has."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := Study.objects.first():
            return found
        time.sleep(0.05)
    raise AssertionError("nothing was submitted")


def test_it_queues_and_says_where(live_server: Any, tmp_path: Path) -> None:
    process = command(live_server, account("ours"), write(tmp_path / "spec.json", SPEC))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    study = Study.objects.get()
    assert out == f"study {study.pk}: {live_server.url}/studies/{study.pk}\n"
    assert "int8-ort: queued" in err


def test_it_waits_for_the_end_and_shows_the_results(
    live_server: Any, tmp_path: Path, finish: Callable[..., None]
) -> None:
    spec = write(tmp_path / "spec.json", SPEC)
    files = {"--junit": tmp_path / "out.xml", "--markdown": tmp_path / "out.md"}
    process = command(
        live_server, account("ours"), spec, "--wait", *(str(part) for pair in files.items() for part in pair)
    )
    study = submitted()
    for experiment in study.experiments.order_by("index"):
        finish(experiment.pk, Measurement(metric="latency_p50_ms", value=2.0, unit="ms", at={"batch_size": 1}, n=2))
    last = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert time.monotonic() - last < 10, "the end is noticed soon"
    assert "int8-ort" in out.split("\n", 1)[1]
    assert "int8-ort: succeeded" in err
    suite = ElementTree.parse(files["--junit"]).getroot().find("testsuite")
    assert suite is not None and suite.get("tests") == "2" and suite.get("failures") == "0"
    assert "int8-ort" in files["--markdown"].read_text()


def test_a_failed_experiment_is_exit_1(live_server: Any, tmp_path: Path) -> None:
    factories.worker()
    spec = {**SPEC, "resources": {"device": "cuda"}, "experiments": [{"name": "fp32"}]}
    process = command(live_server, account("ours"), write(tmp_path / "spec.json", spec), "--wait")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "fp32: failed" in err
    assert "Traceback" not in out + err


def test_a_bad_spec_is_exit_2_with_the_servers_reasons(live_server: Any, tmp_path: Path) -> None:
    spec = {**SPEC, "baseline": "fp23"}
    process = command(live_server, account("ours"), write(tmp_path / "spec.json", spec), "--wait")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "did you mean 'fp32'?" in err
    assert not Study.objects.exists()


def test_a_revoked_key_is_exit_2(live_server: Any, tmp_path: Path) -> None:
    ours = account("ours")
    api_key_revoke(team=ours.team, key_id=ours.key.pk, user=ours.user)
    process = command(live_server, ours, write(tmp_path / "spec.json", SPEC))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "revoked" in err


def test_this_server_has_no_gate_yet(live_server: Any, tmp_path: Path) -> None:
    process = command(live_server, account("ours"), write(tmp_path / "spec.json", SPEC), "--gate")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "this server has no gate" in err
    assert not Study.objects.exists()
