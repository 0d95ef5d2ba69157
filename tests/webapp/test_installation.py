"""Settings from the environment, their checks, health, and what `doctor` says."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import Client
from pytest_django.fixtures import Settings

from tests import factories
from webapp.core.environment import BadEnvironment, broker_socket, read

ROOT = Path(__file__).resolve().parents[2]


def test_a_new_home_gets_a_secret_that_only_its_owner_reads(tmp_path: Path) -> None:
    source = {"STEELYARD_HOME": str(tmp_path / "new" / "home")}
    first = read(source)
    key = first.home / "secret_key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(first.home.stat().st_mode) == 0o700
    assert len(first.secret_key) >= 50
    assert read(source).secret_key == first.secret_key
    assert not first.debug
    assert first.database_url == f"sqlite:///{tmp_path}/new/home/steelyard.sqlite3"
    assert first.allowed_hosts == ("localhost", "127.0.0.1", "[::1]")


def test_the_brokers_socket_fits_however_deep_the_home_lies(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    assert len(str(broker_socket(deep))) < 100
    assert broker_socket(deep) != broker_socket(tmp_path / ("y" * 120))


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [("DEBUG", "maybe", "write 1 or 0"), ("STEELYARD_ENV", "prod", "'production'"), ("LOG_LEVEL", "loud", "INFO")],
)
def test_a_value_that_cant_be_used_says_what_to_write(tmp_path: Path, name: str, value: str, hint: str) -> None:
    with pytest.raises(BadEnvironment, match=hint):
        read({"STEELYARD_HOME": str(tmp_path), name: value})


def manage(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "STEELYARD_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_production_passes_the_deployment_check_without_a_warning(tmp_path: Path) -> None:
    done = manage(
        tmp_path,
        *("check", "--deploy", "--fail-level", "WARNING"),
        STEELYARD_ENV="production",
        ALLOWED_HOSTS="steelyard.example.org",
        STEELYARD_URL="https://steelyard.example.org",
    )
    assert done.returncode == 0, done.stderr
    assert "0 silenced" in done.stdout


def test_a_production_without_a_host_name_is_told_what_to_set(tmp_path: Path) -> None:
    done = manage(tmp_path, "check", STEELYARD_ENV="production", STEELYARD_PATH_ROOTS="/no/such/folder")
    assert done.returncode == 1
    assert "ALLOWED_HOSTS=steelyard.example.org" in done.stderr
    assert "/no/such/folder" in done.stderr


def test_a_worker_without_a_broker_says_how_to_get_one(tmp_path: Path) -> None:
    done = manage(tmp_path, "worker", REDIS_URL="")
    assert done.returncode == 1
    assert "no broker answers" in done.stderr
    assert "python manage.py up" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.django_db
def test_the_tables_are_those_of_the_migrations() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.django_db
def test_health_and_readiness_need_no_sign_in(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"] == {"database": True, "broker": False}


@pytest.mark.django_db
def test_every_other_page_does(client: Client) -> None:
    for page in ("/", "/queue", "/studies/1"):
        answer = client.get(page)
        assert (answer.status_code, answer.headers["Location"].split("?")[0]) == (302, "/signin/")


@pytest.mark.django_db
def test_pages_carry_a_strict_policy(client: Client) -> None:
    policy = client.get("/signin/").headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy


def test_plotly_comes_from_its_wheel_and_nothing_else_of_it_does() -> None:
    from django.contrib.staticfiles import finders

    assert str(finders.find("plotly/plotly.min.js")).endswith("plotly.min.js")
    assert finders.find("plotly/datasets/gapminder.csv.gz") is None


@pytest.mark.django_db
def test_the_doctor_names_what_is_missing(capsys: pytest.CaptureFixture[str], settings: Settings) -> None:
    Path(settings.STEELYARD_HOME).mkdir()
    with pytest.raises(SystemExit):
        call_command("doctor")
    said = capsys.readouterr().out
    assert "FAIL  no broker answers" in said
    assert "FAIL  no worker is connected" in said
    assert "ok    all migrations are applied" in said
    factories.worker("w7")
    with pytest.raises(SystemExit):
        call_command("doctor")
    assert "ok    worker w7 on host1: cpu:0" in capsys.readouterr().out


def test_production_serves_hashed_and_compressed_files(tmp_path: Path) -> None:
    done = manage(tmp_path, "collectstatic", "--noinput", STEELYARD_ENV="production", ALLOWED_HOSTS="x")
    assert done.returncode == 0, done.stderr
    names = [path.name for path in (tmp_path / "static" / "plotly").iterdir()]
    assert [name for name in names if name.startswith("plotly.min.") and name.endswith(".js.gz")]
