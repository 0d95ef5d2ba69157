"""What this machine is and can do: cores allowed, instruction sets, memory, devices, ceilings, fingerprint.

Torch is never imported here; the ceilings are measured in a process of their own.
"""

from experiments.hardware.ceilings import ceilings, cuda_ceilings
from experiments.hardware.cores import allowed_cores
from experiments.hardware.cpu import clock_mhz, cpu_model, explain_slow, isa
from experiments.hardware.devices import cpu_devices, cuda_devices, devices, driver_version
from experiments.hardware.fingerprint import code_version, describe, environment, library_versions
from experiments.hardware.memory import memory_bytes

__all__ = [
    "allowed_cores",
    "ceilings",
    "clock_mhz",
    "code_version",
    "cpu_devices",
    "cpu_model",
    "cuda_ceilings",
    "cuda_devices",
    "describe",
    "devices",
    "driver_version",
    "environment",
    "explain_slow",
    "isa",
    "library_versions",
    "memory_bytes",
]
