"""The devices that an attempt may lease: sets of CPU cores and CUDA GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from experiments.hardware.cores import allowed_cores
from experiments.hardware.cpu import cpu_model
from experiments.hardware.memory import memory_bytes
from experiments.records import DeviceFacts, ExperimentError, FailureKind


def cpu_devices(n: int = 1) -> tuple[DeviceFacts, ...]:
    """This host's allowed cores as ``n`` disjoint devices of neighbouring cores, as equal as they can be.

    Raises:
        ExperimentError: ``unsupported`` if there are fewer cores than devices.
    """
    cores = allowed_cores()
    if not 1 <= n <= len(cores):
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"{n} CPU devices can't be made of {len(cores)} allowed cores",
            fix=f"Ask for 1 to {len(cores)} CPU devices.",
        )
    model, memory = cpu_model(), memory_bytes() // n
    bounds = [len(cores) * i // n for i in range(n + 1)]
    return tuple(
        DeviceFacts(
            name=f"cpu:{i}", kind="cpu", model=model, memory_bytes=memory, cores=cores[bounds[i] : bounds[i + 1]]
        )
        for i in range(n)
    )


def cuda_devices() -> tuple[tuple[DeviceFacts, ...], str | None]:
    """The visible CUDA devices through NVML, and why there are none (None if there are some).

    ``CUDA_VISIBLE_DEVICES`` is honoured, so ``cuda:0`` here is torch's ``cuda:0`` under
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` (NVML's order).
    """
    with _nvml() as (nvml, reason):
        if nvml is None:
            return (), reason
        found: list[DeviceFacts] = []
        try:
            for handle in _visible(nvml):
                found.append(
                    DeviceFacts(
                        name=f"cuda:{len(found)}",
                        kind="cuda",
                        model=str(nvml.nvmlDeviceGetName(handle)),
                        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                        compute_capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
                    )
                )
        except nvml.NVMLError as error:
            return tuple(found), f"NVML could not read a GPU: {error}"
    if found:
        return tuple(found), None
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (), f"CUDA_VISIBLE_DEVICES={hidden!r} leaves no GPU" if hidden is not None else "this machine has no GPU"


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    with _nvml() as (nvml, _):
        return str(nvml.nvmlSystemGetDriverVersion()) if nvml is not None else None


def devices(names: Sequence[str] | None = None) -> tuple[DeviceFacts, ...]:
    """The devices of this host.

    Args:
        names: as ``--devices`` gives them, e.g. ``['cpu:0', 'cpu:1']`` splits the cores in two. Default: one CPU
            device with all allowed cores, and every visible GPU.

    Raises:
        ExperimentError: ``unsupported`` for a name that is malformed, given twice, or names what is not there.
    """
    gpus, reason = cuda_devices()
    if names is None:
        return (*cpu_devices(), *gpus)
    for name in names:
        if not re.fullmatch(r"(cpu|cuda):\d{1,4}", name):
            raise _no(f"{name!r} is no device", "Write devices as cpu:0,cpu:1 or cuda:0,cuda:1.")
        if list(names).count(name) > 1:
            raise _no(f"device {name} is given twice", "Give each device once.")
    if not names:
        raise _no("no device is given", "Give at least one device, e.g. cpu:0.")
    cpus = [name for name in names if name.startswith("cpu:")]
    expected = [f"cpu:{i}" for i in range(len(cpus))]
    if sorted(cpus) != sorted(expected):
        raise _no(f"CPU devices are numbered from 0 without gaps, not {', '.join(cpus)}", f"Use {','.join(expected)}.")
    there = {d.name: d for d in (*(cpu_devices(len(cpus)) if cpus else ()), *gpus)}
    for name in names:
        if name not in there:
            why = reason or f"there are {', '.join(d.name for d in gpus)}"
            raise _no(f"there is no device {name}: {why}", "Leave it out, or run where the GPU is.")
    return tuple(there[name] for name in names)


def _no(message: str, fix: str) -> ExperimentError:
    return ExperimentError(FailureKind.UNSUPPORTED, message, fix=fix)


@contextmanager
def _nvml() -> Iterator[tuple[Any, str | None]]:
    """The initialised NVML module, or (None, why not)."""
    try:
        import pynvml
    except ImportError:
        yield None, "nvidia-ml-py is not installed"
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = isinstance(error, pynvml.NVMLError_LibraryNotFound)
        yield None, "no NVIDIA driver is installed (NVML library not found)" if missing else f"NVML says: {error}"
        return
    try:
        yield pynvml, None
    finally:
        pynvml.nvmlShutdown()


def _visible(nvml: Any) -> Iterator[Any]:
    """NVML handles in the order CUDA numbers them; like CUDA, the list ends at the first entry that is not there."""
    count = int(nvml.nvmlDeviceGetCount())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        for index in range(count):
            yield nvml.nvmlDeviceGetHandleByIndex(index)
        return
    for entry in (part.strip() for part in chosen.split(",")):
        if entry.isdigit() and int(entry) < count:
            yield nvml.nvmlDeviceGetHandleByIndex(int(entry))
        elif entry.startswith(("GPU-", "MIG-")):
            yield nvml.nvmlDeviceGetHandleByUUID(entry)
        else:
            return
