"""The machine's part of an experiment's fingerprint."""

from __future__ import annotations

import platform
import socket
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import experiments
from experiments.hardware.cores import allowed_cores
from experiments.hardware.cpu import clock_mhz, cpu_model, isa
from experiments.hardware.devices import cuda_devices, devices, driver_version
from experiments.hardware.memory import memory_bytes
from experiments.records import DeviceFacts


def environment(libraries: Iterable[str], cores: Sequence[int], devices: Sequence[DeviceFacts]) -> dict[str, Any]:
    """The fields of :class:`experiments.records.Environment` that this machine decides.

    The caller adds model, data, workload, spec, seed and ceilings.

    Args:
        libraries: names of distributions whose versions belong to the fingerprint.
        cores: the cores leased; threads = their number.
        devices: the devices leased.
    """
    return {
        "code_version": code_version(),
        "hostname": socket.gethostname(),
        "cpu": cpu_model(),
        "isa": isa(),
        "cores": tuple(cores),
        "threads": len(cores),
        "memory_bytes": memory_bytes(),
        "devices": tuple(devices),
        "driver": driver_version(),
        "clock_mhz": clock_mhz(tuple(cores)),
        "libraries": library_versions(libraries),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def describe() -> dict[str, Any]:
    """What ``steelyard hardware`` shows, as plain JSON data; ``cuda`` says why there is no GPU."""
    _, reason = cuda_devices()
    return {
        "hostname": socket.gethostname(),
        "cpu": cpu_model(),
        "isa": list(isa()),
        "cores": list(allowed_cores()),
        "threads": len(allowed_cores()),
        "clock_mhz": clock_mhz(),
        "memory_bytes": memory_bytes(),
        "devices": [device.model_dump(mode="json") for device in devices()],
        "cuda": reason or "available",
        "driver": driver_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "code_version": code_version(),
    }


def library_versions(names: Iterable[str]) -> dict[str, str]:
    """Distribution -> version of those that are installed.

    A name that is no distribution but a module (``onnxruntime``, which ``onnxruntime-gpu`` provides) is looked up by
    what provides it.
    """
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            for provider in metadata.packages_distributions().get(name, ()):
                found[provider] = metadata.version(provider)
    return dict(sorted(found.items()))


@cache
def code_version() -> str:
    """``git describe`` of this checkout ('-dirty' if it was changed), else the package's version."""
    home = Path(experiments.__file__).resolve().parent.parent
    if (home / ".git").exists():
        try:
            done = subprocess.run(
                ["git", "describe", "--always", "--dirty", "--tags"],
                cwd=home,
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):  # no git here: the version says enough
            return experiments.__version__
        if done.returncode == 0:
            return f"{experiments.__version__}+{done.stdout.strip()}"
    return experiments.__version__
