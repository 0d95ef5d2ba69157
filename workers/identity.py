"""Who this worker is and what it offers; ``manage.py worker`` says so in the environment, else the host does."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from functools import cache
from typing import Any

from experiments import hardware
from experiments.records import DeviceFacts

NAME = "STEELYARD_WORKER"
DEVICES = "STEELYARD_DEVICES"
LABELS = "STEELYARD_LABELS"


@dataclass(frozen=True)
class Identity:
    """A worker: its name, host, devices, labels and facts."""

    name: str
    host: str
    devices: tuple[DeviceFacts, ...]
    labels: dict[str, str]
    facts: dict[str, Any]


@cache
def this_worker() -> Identity:
    """The worker that this process belongs to.

    Raises:
        ExperimentError: a device that is not there.
    """
    names = [part.strip() for part in os.environ.get(DEVICES, "").split(",") if part.strip()]
    labels = dict(part.strip().split("=", 1) for part in os.environ.get(LABELS, "").split(",") if "=" in part)
    return Identity(
        name=os.environ.get(NAME) or socket.gethostname(),
        host=socket.gethostname(),
        devices=hardware.devices(names or None),
        labels=labels,
        facts={
            "cpu": hardware.cpu_model(),
            "isa": list(hardware.isa()),
            "cores": list(hardware.allowed_cores()),
            "memory_bytes": hardware.memory_bytes(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "code_version": hardware.code_version(),
            "libraries": hardware.library_versions(["torch", "onnxruntime-gpu", "transformers"]),
        },
    )
