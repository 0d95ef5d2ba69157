"""The machine's ceilings are measured in a process of its own and kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.hardware import allowed_cores, ceilings, cuda_ceilings, cuda_devices
from experiments.hardware.ceilings import copy_bytes, last_level_cache_bytes
from experiments.records import Ceilings, ExperimentError


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ceilings]:
    cache = tmp_path_factory.mktemp("cache")
    return cache, ceilings(cache, allowed_cores()[:1])


def test_ceilings_are_plausible_for_any_machine(measured: tuple[Path, Ceilings]) -> None:
    _, found = measured
    assert found.threads == 1
    assert 1e8 < found.copy_bytes_per_s < 1e13
    assert {"float32", "bfloat16", "float16"} <= set(found.gemm_flops_per_s)
    assert all(1e7 < rate < 1e16 for rate in found.gemm_flops_per_s.values())


def test_ceilings_are_measured_once_and_then_read(measured: tuple[Path, Ceilings]) -> None:
    cache, found = measured
    start = time.monotonic()
    assert ceilings(cache, allowed_cores()[:1]) == found
    assert time.monotonic() - start < 2


def test_measuring_does_not_import_torch_here_nor_change_the_affinity(measured: tuple[Path, Ceilings]) -> None:
    assert os.sched_getaffinity(0) >= set(allowed_cores())
    code = "import experiments.hardware, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_measurement_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.hardware import ceilings as module

    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no memory for the copy')")
    monkeypatch.setattr(sys.modules["experiments.hardware.ceilings"], "_SCRIPT", broken)
    with pytest.raises(ExperimentError, match="no memory for the copy"):
        module(tmp_path, (0,))
    assert not list((tmp_path / "ceilings").glob("*/ceilings.json"))


def test_the_copy_is_larger_than_the_cache_and_fits_the_memory(tmp_path: Path) -> None:
    assert 1 << 20 < copy_bytes() <= 1 << 30
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cache/index3"
    folder.mkdir(parents=True)
    (folder / "size").write_text("32768K\n")
    assert last_level_cache_bytes(tmp_path) == 32 << 20


@pytest.mark.skipif(bool(cuda_devices()[0]), reason="there is a GPU")
def test_without_a_gpu_its_ceilings_are_refused_with_the_reason(tmp_path: Path) -> None:
    devices, reason = cuda_devices()
    assert devices == ()
    assert reason
    with pytest.raises(ExperimentError, match="there is no device cuda:0"):
        cuda_ceilings(tmp_path, 0)


@pytest.mark.gpu
def test_a_gpu_has_ceilings_above_this_cpu(tmp_path: Path) -> None:
    found = cuda_ceilings(tmp_path, 0)
    assert found.gemm_flops_per_s["float16"] > 1e12
    assert found.copy_bytes_per_s > 5e10
