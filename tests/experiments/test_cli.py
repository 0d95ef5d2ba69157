"""The command line as people and CI jobs use it: in a process of its own, by exit codes and lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments.junit import junit_xml
from experiments.records import Failure, FailureKind, Report, StudyReport

SPEC = """\
schema_version: 1
name: reviews, smaller
model: {source: demo, name: minilm-reviews}
dataset: {source: demo, name: reviews, split: test, limit: 50}
baseline: fp32
experiments:
  - {name: fp32}
  - {name: int8-ort, recipe: [{technique: int8-dynamic}], runtime: onnxruntime}
"""


def steelyard(*arguments: str | Path, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the CLI; every run is held to show no stack trace."""
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "STEELYARD_API_KEY": "", **environment},
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(SPEC)
    return path


# ------------------------------------------------------------------------------------------------- usage, bad specs


def test_help_names_every_command_and_hides_the_internal_one() -> None:
    done = steelyard("--help")
    assert done.returncode == 0
    for command in ("run", "submit", "catalog", "hardware"):
        assert command in done.stdout
    assert "attempt" not in done.stdout


@pytest.mark.parametrize(
    "arguments", [(), ("bogus",), ("run",), ("submit", "x.yaml"), ("run", "a", "--nope")], ids=lambda a: " ".join(a)
)
def test_wrong_usage_is_one_line_and_exit_2(arguments: tuple[str, ...]) -> None:
    done = steelyard(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--help" in done.stderr


def test_a_missing_spec_is_named(tmp_path: Path) -> None:
    done = steelyard("run", tmp_path / "absent.yaml")
    assert done.returncode == 2
    assert done.stderr == f"{tmp_path / 'absent.yaml'}: No such file or directory\n"


def test_every_problem_of_a_spec_has_a_line_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        SPEC.replace("int8-dynamic", "int8-dinamic").replace("limit: 50", "limit: 50, colour: red")
        + "workload: {batch_sizes: [0]}\n"
    )
    done = steelyard("run", path)
    assert done.returncode == 2
    lines = dict(line.split(": ", 1) for line in done.stderr.splitlines())
    assert lines["experiments.1.recipe.0.technique"] == "unknown technique 'int8-dinamic'; did you mean 'int8-dynamic'?"
    assert lines["dataset.colour"].startswith("unknown field")
    assert "greater than or equal to 1" in lines["workload.batch_sizes.0"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "must be a mapping"),
        (b"- a\n- b\n", "must be a mapping"),
        (b"name: [unclosed", "not valid YAML"),
        (b"\xff\xfe\x00bad", "UTF-8"),
        (b"a: &a [1]\nb: *a\n", "aliases"),
        (b"name: x\nname: y\n", "given twice"),
        (b"x" * 1_000_001, "at most 1,000,000 bytes"),
    ],
)
def test_a_file_that_is_no_spec_is_refused_with_its_name(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    done = steelyard("run", path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{path}: ")
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_fifty_megabyte_spec_is_refused_without_reading_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    done = steelyard("submit", path, "--server", "http://127.0.0.1:9", STEELYARD_API_KEY="sy_x")
    assert done.returncode == 2
    assert "at most 1,000,000 bytes" in done.stderr


def test_control_characters_of_a_spec_never_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(SPEC.replace("int8-dynamic", '"\\e[31mred"'))
    done = steelyard("run", path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr


def test_an_output_that_could_not_be_written_is_refused_before_the_work(spec: Path, tmp_path: Path) -> None:
    done = steelyard("run", spec, "--json", tmp_path / "absent" / "out.json")
    assert done.returncode == 2
    assert "there is no directory" in done.stderr
    assert steelyard("run", spec, "--json", tmp_path).returncode == 2


# ------------------------------------------------------------------------------------------------- catalog, hardware


def test_catalog_lists_every_plugin_as_data_and_as_text() -> None:
    data = json.loads(steelyard("catalog", "--json").stdout)
    assert {row["name"] for row in data["techniques"]} >= {"fp16", "bf16", "int8-dynamic"}
    assert {row["name"] for row in data["runtimes"]} >= {"torch-eager", "onnxruntime"}
    assert all(row["schema"]["properties"] for row in data["techniques"])
    text = steelyard("catalog").stdout
    for kind, rows in data.items():
        assert f"{kind}:" in text
        assert all(row["name"] in text for row in rows)


@pytest.mark.parametrize(
    "arguments",
    [("catalog", "--json"), ("run",), ("run", "absent.yaml"), ("submit", "{spec}", "--server", "http://127.0.0.1:9")],
    ids=lambda a: " ".join(a),
)
def test_torch_is_not_imported_by(arguments: tuple[str, ...], spec: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "experiments", *(a.format(spec=spec) for a in arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "STEELYARD_API_KEY": ""},
        check=False,
    )
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert "experiments.cli" in imported or "argparse" in imported
    assert not imported & {"torch", "transformers", "onnxruntime", "django"}


def test_a_reader_that_leaves_early_gets_no_complaint() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m experiments catalog --json | head -c 10"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("{")


# ------------------------------------------------------------------------------------------------- submit


class _Server(ThreadingHTTPServer):
    """A server that answers as told and remembers what it was asked."""

    def __init__(self, answers: list[tuple[int, dict[str, str], bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, dict(self.headers), body))
        status, headers, answer = self.server.answers.pop(0)
        if status == 0:  # hang up without an answer
            self.connection.close()
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(answer))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        return None


@contextmanager
def answering(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[_Server]:
    server = _Server(list(answers))
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


ACCEPTED = json.dumps({"id": 7, "links": {"page": "http://x/studies/7"}, "experiments": []}).encode()


def submit(spec: Path, server: str, *more: str, key: str = "sy_secret") -> subprocess.CompletedProcess[str]:
    return steelyard("submit", spec, "--server", server, *more, STEELYARD_API_KEY=key, no_proxy="*")


def test_submit_needs_a_key_and_an_address(spec: Path) -> None:
    for done in (submit(spec, "http://127.0.0.1:9", key=""), submit(spec, "localhost:8000"), submit(spec, "ftp://x")):
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
    assert "STEELYARD_API_KEY" in submit(spec, "http://127.0.0.1:9", key="").stderr


def test_submit_repeats_a_lost_request_with_the_same_idempotency_key(spec: Path) -> None:
    later = {"Retry-After": "0"}
    with answering((503, later, b""), (0, {}, b""), (429, later, b""), (202, {}, ACCEPTED)) as server:
        done = submit(spec, server.url)
    assert done.returncode == 0
    assert done.stdout == "study 7: http://x/studies/7\n"
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in server.asked}) == 1
    assert len(server.asked) == 4
    method, path, headers, body = server.asked[-1]
    assert (method, path, headers["Authorization"]) == ("POST", "/api/v1/studies", "Bearer sy_secret")
    assert (headers["Content-Type"], body) == ("application/yaml", SPEC.encode())


def test_two_submissions_are_two_studies(spec: Path) -> None:
    with answering((202, {}, ACCEPTED), (202, {}, ACCEPTED)) as server:
        assert submit(spec, server.url).returncode == submit(spec, server.url).returncode == 0
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in server.asked}) == 2


def test_an_absent_server_is_exit_4(spec: Path) -> None:
    done = submit(spec, "http://127.0.0.1:9", "--patience", "0.2")
    assert done.returncode == 4
    assert "refused" in done.stderr


def test_a_server_that_refuses_is_quoted_and_exit_2(spec: Path) -> None:
    fields = [{"path": "experiments.1.recipe.0.technique", "message": "unknown"}, {"path": "", "message": "and more"}]
    envelope = json.dumps({"error": {"code": "invalid", "message": "no", "fields": fields}}).encode()
    with answering((422, {}, envelope)) as server:
        done = submit(spec, server.url)
    assert done.returncode == 2
    assert done.stderr == "experiments.1.recipe.0.technique: unknown\nand more\n"


def test_a_redirect_never_carries_the_key_elsewhere(spec: Path) -> None:
    with answering() as elsewhere, answering((307, {"Location": f"{elsewhere.url}/x"}, b"")) as server:
        done = submit(spec, server.url)
    assert done.returncode == 2
    assert elsewhere.url in done.stderr
    assert elsewhere.asked == []


def test_another_kind_of_server_is_told_apart(spec: Path) -> None:
    with answering((404, {}, b"<html>no</html>"), (200, {}, b"<html>hi</html>")) as server:
        assert "is it a Steelyard server?" in submit(spec, server.url).stderr
        assert "does not answer as a Steelyard server" in submit(spec, server.url).stderr


def test_the_key_is_never_printed(spec: Path) -> None:
    with answering((401, {}, b"{}")) as server:
        done = submit(spec, server.url)
    assert "sy_secret" not in done.stdout + done.stderr


def test_a_server_without_a_gate_is_found_out_before_anything_is_queued(spec: Path) -> None:
    with answering((200, {}, b'{"paths": {"/api/v1/studies": {}}}')) as server:
        done = submit(spec, server.url, "--gate")
    assert done.returncode == 2
    assert "this server has no gate" in done.stderr
    assert [path for _, path, _, _ in server.asked] == ["/api/v1/openapi.json"]


@pytest.mark.parametrize(
    ("gate", "code", "says"),
    [
        ((200, {}, b'{"verdict": "passed", "rules": []}'), 0, "gate: passed"),
        ((200, {}, b'{"verdict": "failed", "rules": [{"metric": "accuracy", "verdict": "failed"}]}'), 3, "accuracy"),
        ((200, {}, b'{"verdict": "undecided", "rules": []}'), 5, "gate: undecided"),
        ((200, {}, b'{"verdict": "odd"}'), 2, "does not know"),
        ((404, {}, b"{}"), 2, "this server has no gate"),
    ],
)
def test_the_gates_verdict_is_the_exit_code(
    spec: Path, gate: tuple[int, dict[str, str], bytes], code: int, says: str
) -> None:
    described = json.dumps({"paths": {"/api/v1/studies/{study_id}/gate": {}}}).encode()
    ended = json.dumps({"experiments": []}).encode()
    results = StudyReport(name="x", baseline="fp32", spec={}, experiments=()).model_dump_json().encode()
    answers = [(200, {}, described), (202, {}, ACCEPTED), (200, {}, ended), (200, {}, results), gate]
    with answering(*answers) as server:
        done = submit(spec, server.url, "--gate")
    assert done.returncode == code, done.stderr
    assert says in done.stderr


def test_waiting_ends_with_exit_4_at_its_timeout(spec: Path) -> None:
    experiment = {
        "id": 1,
        "name": "fp32",
        "status": "queued",
        "stage": "",
        "fraction": 0.0,
        "seconds_left": None,
        "last_seq": 0,
        "failure": None,
    }
    state = json.dumps({"experiments": [experiment]}).encode()
    events = b'{"events": [], "last_seq": 0, "ended": false}'
    with answering((202, {}, ACCEPTED), *[(200, {}, state), (200, {}, events)] * 20) as server:
        done = submit(spec, server.url, "--wait", "--timeout", "1.5")
    assert done.returncode == 4
    assert "goes on on the server" in done.stderr
    assert len(server.asked) < 10, "an idle wait must not hammer the server"


# ------------------------------------------------------------------------------------------------- attempt


def test_attempt_refuses_a_descriptor_that_is_not_open(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text("{}")
    arguments = ("--out", tmp_path / "report.json", "--events-fd", "77", "--cores", "0")
    done = steelyard("attempt", "--spec", path, *arguments)
    assert done.returncode == 2
    assert "name: this field is required" in done.stderr.splitlines()
    done = steelyard("attempt", "--spec", path, "--out", "x", "--events-fd", "1", "--cores", "0,0")
    assert done.returncode == 2
    assert "not a list of cores" in done.stderr


# ------------------------------------------------------------------------------------------------- junit


def test_junit_says_what_failed_and_survives_any_log() -> None:
    def report(name: str, status: Any, failure: Failure | None = None) -> Report:
        return Report(
            experiment=name,
            baseline="fp32",
            task="text-classification",
            spec={},
            status=status,
            failure=failure,
            stage_seconds={"build": 1.5, "measure": 2.0},
        )

    failure = Failure(
        kind=FailureKind.OUT_OF_MEMORY, message="killed <&>", fix="less", log_tail=("\x1b[31m\x00bad\ud800", "end")
    )
    study = StudyReport(
        name='a "study" <b>',
        baseline="fp32",
        spec={},
        experiments=(report("fp32", "succeeded"), report("int8", "failed", failure), report("x", "cancelled")),
    )
    suite = ElementTree.fromstring(junit_xml(study)).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    cases = {case.get("name"): case for case in suite}
    assert len(cases["fp32"]) == 0
    broken = cases["int8"].find("failure")
    assert broken is not None and broken.text is not None
    assert (broken.get("type"), broken.get("message")) == ("out_of_memory", "killed <&>")
    assert broken.text.endswith("end") and "less" in broken.text
    assert cases["x"].find("skipped") is not None


def test_a_senseless_recipe_is_refused_before_anything_runs(spec: Path) -> None:
    step = "{technique: int8-dynamic}"
    spec.write_text(spec.read_text() + f"  - {{name: twice, recipe: [{step}, {step}]}}\n")
    done = steelyard("run", spec)
    assert done.returncode == 2
    assert "recipe: int8-dynamic and int8-dynamic both quantize" in done.stderr
