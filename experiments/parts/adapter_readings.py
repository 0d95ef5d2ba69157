"""What several adapters on one base cost and answer, read in a measured process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    from experiments.protocols import AdapterSession, DeviceKind, Task

Inputs = Mapping[str, npt.NDArray[Any]]

#: Switches that are timed, and blocks of forward calls on either side.
SWITCHES, BLOCKS, CALLS = 30, 8, 3
#: Largest difference of answers that the order of sums explains, as a share of the largest answer.
TOLERANCE = 1e-3


def adapter_readings(
    session: AdapterSession, folder: Path, batch: Inputs, probe: Inputs, task: Task, device: DeviceKind
) -> dict[str, Any]:
    """Memory, switching, mixing and equality of the adapters of ``session``, as JSON data.

    Args:
        session: the artifact in ``folder``, opened with all its adapters.
        folder: the artifact, from which each adapter is opened again alone.
        batch: a batch of requests, at least as many rows as adapters, for the latency of a mixed batch.
        probe: inputs whose answers are compared.
        task: what the artifact does.
        device: where the session runs.

    Returns:
        ``names``; ``bytes`` of the base with all adapters and ``merged_bytes`` of each merged model, over unique
        storages; ``switch_ns``; ``rows``, and ``mixed_ns`` and ``single_ns`` in blocks that were timed in turn;
        ``difference``, the largest one between an answer through this session (switched or mixed) and that of the
        adapter opened alone; ``merged_difference``, the same against the adapter merged.

    Raises:
        ExperimentError: ``canary`` naming the adapter whose answers differ by more than float rounding.
    """
    names = session.adapters()
    readings: dict[str, Any] = {"names": list(names), "bytes": session.weights_bytes()}
    readings["switch_ns"] = _switches(session, names)
    readings["rows"] = len(next(iter(batch.values())))
    readings |= _in_turn(session, names, batch)
    readings |= _against_own(session, names, folder, probe, task, device)
    session.use_adapter(names[0])
    return readings


def _switches(session: AdapterSession, names: tuple[str, ...]) -> list[int]:
    samples = []
    for number in range(-len(names), SWITCHES):  # the first round is untimed
        started = time.monotonic_ns()
        session.use_adapter(names[number % len(names)])
        if number >= 0:
            samples.append(time.monotonic_ns() - started)
    return samples


def _in_turn(session: AdapterSession, names: tuple[str, ...], batch: Inputs) -> dict[str, Any]:
    """Blocks of calls that mix all adapters, and of calls that use one, in the order A B B A."""
    rows = len(next(iter(batch.values())))
    spread = [names[row % len(names)] for row in range(rows)]
    session.use_adapter(names[0])
    calls: dict[str, Callable[[], Any]] = {
        "mixed_ns": lambda: session.forward_mixed(batch, spread),
        "single_ns": lambda: session.forward(batch),
    }
    samples: dict[str, list[list[int]]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for number in range(BLOCKS):
        for name in list(calls) if number % 2 == 0 else list(calls)[::-1]:
            block = []
            for _ in range(CALLS):
                started = time.monotonic_ns()
                calls[name]()
                block.append(time.monotonic_ns() - started)
            samples[name].append(block)
    return samples


def _against_own(
    session: AdapterSession,
    names: tuple[str, ...],
    folder: Path,
    probe: Inputs,
    task: Task,
    device: DeviceKind,
) -> dict[str, Any]:
    """Each adapter opened alone, then merged: its answers, and the bytes of the merged model."""
    from experiments.parts.adapters import adapter_folders, held, with_adapters
    from experiments.parts.tied_weights import unique_bytes
    from experiments.parts.torch_files import base_module
    from experiments.parts.torch_session import TorchSession

    rows = len(next(iter(probe.values())))
    spread = [names[row % len(names)] for row in range(rows)]
    mixed = session.forward_mixed(probe, spread)
    folders = adapter_folders(folder)
    merged_bytes, alone, apart = [], 0.0, 0.0
    for name in names:
        module = with_adapters(base_module(folder).eval(), {name: folders[name]}).to(device)
        own = TorchSession(module, task, device, 0).forward(probe)
        session.use_adapter(name)
        switched = session.forward(probe)
        mine = [row for row in range(rows) if spread[row] == name]
        worst = max(_difference(switched, own), _difference(mixed[mine], own[mine]))
        limit = TOLERANCE * max(1.0, float(np.abs(own).max()))
        if not worst <= limit:
            raise ExperimentError(
                FailureKind.CANARY,
                f"{name} answers otherwise beside other adapters than alone: by up to {worst:.3g}, more than the "
                f"{limit:.3g} that rounding explains",
                difference=worst,
            )
        model = held(module)
        assert model is not None, "an adapter was just added"
        merged = model.merge_and_unload(safe_merge=True)
        merged_bytes.append(unique_bytes(merged))
        alone = max(alone, worst)
        apart = max(apart, _difference(switched, TorchSession(merged, task, device, 0).forward(probe)))
    return {"merged_bytes": merged_bytes, "difference": alone, "merged_difference": apart}


def _difference(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max()) if one.size else 0.0
