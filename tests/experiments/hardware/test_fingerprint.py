"""The machine's part of the fingerprint fits the record, and holds what is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import experiments
from experiments.hardware import allowed_cores, code_version, cpu_devices, describe, environment, library_versions
from experiments.records import Environment


def test_the_environment_fits_the_record() -> None:
    fields = environment(["numpy", "pydantic"], allowed_cores(), cpu_devices())
    record = Environment(model="m", model_sha256="0", workload_sha256="0", spec_sha256="0", seed=0, **fields)
    assert record.threads == len(allowed_cores())
    assert record.libraries == {"numpy": metadata.version("numpy"), "pydantic": metadata.version("pydantic")}
    assert Environment.model_validate_json(record.model_dump_json()) == record


def test_a_module_is_found_by_the_distribution_that_provides_it() -> None:
    assert library_versions(["yaml"]) == {"PyYAML": metadata.version("PyYAML")}


def test_what_is_not_installed_is_left_out() -> None:
    assert library_versions(["no-such-distribution"]) == {}


def test_what_hardware_shows_is_plain_json() -> None:
    shown = json.loads(json.dumps(describe()))
    assert shown["threads"] == len(shown["cores"]) == len(allowed_cores())
    assert shown["devices"][0]["name"] == "cpu:0"
    assert shown["cuda"]


def test_the_code_version_starts_with_the_package_version() -> None:
    assert code_version().startswith(experiments.__version__)


@pytest.mark.parametrize("visible", ["", "nothing-here"])
def test_hidden_gpus_are_not_offered(visible: str) -> None:
    code = "from experiments.hardware import cuda_devices; d, why = cuda_devices(); print(len(d), bool(why))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(experiments.__file__).parent.parent,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
    )
    assert done.stdout.split() == ["0", "True"]
