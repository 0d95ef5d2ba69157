"""The machine's own limits, measured once and cached: memory bandwidth and matrix products by dtype."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.hardware.cpu import cpu_model, isa
from experiments.hardware.devices import cuda_devices, driver_version
from experiments.hardware.fingerprint import library_versions
from experiments.hardware.memory import memory_bytes
from experiments.parts.cache import Cache
from experiments.records import Ceilings, ExperimentError, FailureKind

MIB = 1 << 20
TIMEOUT_S = 120
#: Raise it when what is tried changes.
MEASURE_VERSION = 2
_SCRIPT = Path(__file__).with_name("measure_ceilings.py")
_FILE = "ceilings.json"


def ceilings(cache: Path, cores: Sequence[int]) -> Ceilings:
    """Ceilings of these cores with one thread each: a large copy, and the best GEMM of several libraries by dtype.

    Measured in a fresh process bound to ``cores`` (a few seconds), then kept in ``cache`` by CPU, instruction sets,
    number of cores and the versions of what was tried.

    Raises:
        ExperimentError: ``internal`` if the measuring process failed.
    """
    threads = len(cores)
    key: dict[str, object] = {
        "cpu": cpu_model(),
        "isa": list(isa()),
        "threads": threads,
        "measure": MEASURE_VERSION,
        "libraries": library_versions(["torch", "onnxruntime", "onnxruntime-gpu"]),
    }
    arguments = ["cpu", str(threads), str(copy_bytes()), ",".join(str(core) for core in cores)]
    return _cached(cache, key, arguments, threads)


def cuda_ceilings(cache: Path, index: int) -> Ceilings:
    """Ceilings of one GPU (``threads`` is 1, the host's), cached like :func:`ceilings`.

    Raises:
        ExperimentError: ``fallback`` if there is no such GPU, ``internal`` if the measuring process failed.
    """
    gpus, reason = cuda_devices()
    if index >= len(gpus):
        raise ExperimentError(
            FailureKind.FALLBACK, f"there is no device cuda:{index}: {reason or f'{len(gpus)} there'}"
        )
    key: dict[str, object] = {
        "gpu": gpus[index].model,
        "driver": driver_version(),
        "torch": library_versions(["torch"]).get("torch"),
    }
    return _cached(cache, key, [f"cuda:{index}", "1", str(1024 * MIB)], 1)


def copy_bytes() -> int:
    """Size of the copied buffer: 4 times the last-level cache, 256 MiB to 1 GiB, at most 1/16 of the memory."""
    return min(max(256 * MIB, 4 * last_level_cache_bytes()), 1024 * MIB, memory_bytes() // 16)


def last_level_cache_bytes(root: Path = Path("/")) -> int:
    """Bytes of the largest cache of core 0, or 0 if the system does not tell."""
    units = {"K": 1024, "M": MIB, "G": 1024 * MIB}
    sizes = [0]
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit():
            sizes.append(int(text[:-1]) * units.get(text[-1], 1))
    return max(sizes)


def _cached(cache: Path, key: dict[str, object], arguments: list[str], threads: int) -> Ceilings:
    def make(folder: Path) -> None:
        measured = _measure(arguments, threads)
        (folder / _FILE).write_text(measured.model_dump_json(indent=1))

    folder, _ = Cache(cache).get("ceilings", key, make)
    return Ceilings.model_validate_json((folder / _FILE).read_text())


def _measure(arguments: list[str], threads: int) -> Ceilings:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_SCRIPT), *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environment,
            check=True,
        )
        return Ceilings(threads=threads, **json.loads(done.stdout))
    except subprocess.TimeoutExpired as error:
        raise ExperimentError(
            FailureKind.INTERNAL, f"measuring the machine's ceilings took longer than {TIMEOUT_S} s"
        ) from error
    except (subprocess.CalledProcessError, ValueError) as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise ExperimentError(
            FailureKind.INTERNAL, f"the machine's ceilings could not be measured: {lines[-1] if lines else 'no output'}"
        ) from error
