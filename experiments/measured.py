"""What a measured process does: load one saved artifact, then probe, time and evaluate it on command.

Only the artifact and a pack are read; torch is imported only if the artifact's runtime needs it.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from experiments import catalog
from experiments.child import Handler, Reply, peak_rss
from experiments.parts.packs import Pack
from experiments.parts.padded_rows import Arrays
from experiments.parts.pooling import pooled
from experiments.protocols import AdapterSession, DeviceKind, Runtime, Session, Task
from experiments.records import ExperimentError, FailureKind


def handlers(reply: Reply) -> dict[str, Handler]:
    """The operations of a measured process."""
    process = _Measured(reply)
    return {
        "open": process.open,
        "probe": process.probe,
        "locate": process.locate,
        "warm": process.warm,
        "block": process.block,
        "memory": process.memory,
        "adapters": process.adapters,
        "evaluate": process.evaluate,
    }


def probe_outputs(session: Session, probe: Mapping[str, npt.NDArray[Any]], folder: Path) -> None:
    """Write what ``session`` answers to the probe: ``batch.npy`` (padded) and ``single.npy`` (each example alone).

    Both have the batch's shape, with 0 at positions that are padding, so that the two can be compared.
    """
    batch = session.forward(probe)
    mask = probe.get("attention_mask")
    per_token = mask is not None and batch.ndim == 3
    singles = np.zeros_like(batch)
    for row in range(len(batch)):
        length = int(mask[row].sum()) if mask is not None else None
        one = {name: array[row : row + 1, :length] if length else array[row : row + 1] for name, array in probe.items()}
        answer = session.forward(one)[0]
        if per_token:
            singles[row, :length] = answer
        else:
            singles[row] = answer
    if per_token and mask is not None:
        batch = batch * mask[:, :, None]
    np.save(folder / "batch.npy", batch)
    np.save(folder / "single.npy", singles)


class _Measured:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._session: Session
        self._task: Task
        self._pack: Pack
        self._requests: Arrays
        self._next = 0
        self._folder: Path
        self._new_tokens = 0
        self._cuda = False

    def open(
        self,
        *,
        folder: str,
        runtime: dict[str, Any],
        device: DeviceKind,
        threads: int,
        pack: str,
        task: Task,
        new_tokens: int,
    ) -> dict[str, Any]:
        started = time.monotonic_ns()
        loaded: Runtime = TypeAdapter(catalog.union("runtime")).validate_python(runtime)
        self._folder = Path(folder)
        self._session = loaded.open(self._folder, device, threads)
        self._task = task
        self._pack = Pack(Path(pack))
        self._requests = self._pack.requests()  # in memory, so that timing never waits for the disk
        self._new_tokens = new_tokens
        self._cuda = device == "cuda"
        return {
            "proof": self._session.proof(),
            "weights_bytes": self._session.weights_bytes(),
            "open_ns": time.monotonic_ns() - started,
            "torch_imported": "torch" in sys.modules,
        }

    def probe(self, *, out: str) -> dict[str, Any]:
        probe_outputs(self._session, self._pack.probe(), Path(out))
        return {}

    def locate(self) -> dict[str, Any]:
        """Where the probe first becomes NaN or infinite: a layer or node by name, or None."""
        return {"where": self._session.first_non_finite(self._pack.probe())}

    def _batch(self, size: int) -> Arrays:
        """The next ``size`` requests, going round: consecutive calls get different requests."""
        total = len(next(iter(self._requests.values())))
        rows = [(self._next + i) % total for i in range(size)]
        self._next = (self._next + size) % total
        return {name: array[rows] for name, array in self._requests.items()}

    def _request(self, size: int) -> tuple[int, int, tuple[int, ...]]:
        """One closed-loop request: (latency, ttft, token gaps) in ns; ttft is 0 where nothing is generated."""
        inputs = self._batch(size)
        if self._task == "text-generation":
            made = self._session.generate(inputs["input_ids"], self._new_tokens)
            times = made.times_ns
            gaps = tuple(b - a for a, b in itertools.pairwise(times))
            return times[-1] - made.started_ns, times[0] - made.started_ns, gaps
        started = time.monotonic_ns()
        self._session.forward(inputs)
        return time.monotonic_ns() - started, 0, ()

    def warm(self, *, batch_size: int, seconds: float) -> dict[str, Any]:
        """Run untimed requests for ``seconds`` (at least 2, at most 50) and say the median of the later half."""
        deadline = time.monotonic() + seconds
        seen: list[int] = []
        # What is compiled for a shape is compiled now: requests go on until one of them has compiled nothing.
        compiled = -1.0
        while len(seen) < 2 or compiled != self._compiled() or (time.monotonic() < deadline and len(seen) < 50):
            compiled = self._compiled()
            seen.append(self._request(batch_size)[0])
        return {"latency_ns": int(np.median(seen[len(seen) // 2 :])), "requests": len(seen)}

    def _compiled(self) -> float:
        return self._session.compilation().get("compilations", 0.0)

    def block(self, *, batch_size: int, requests: int, settle: int) -> dict[str, Any]:
        """``settle`` untimed requests (the partner has just used the caches), then ``requests`` timed ones."""
        for _ in range(settle):
            self._request(batch_size)
        compiled = self._compiled()
        started = time.monotonic_ns()
        timed = [self._request(batch_size) for _ in range(requests)]
        wall = time.monotonic_ns() - started
        if self._compiled() != compiled:
            raise ExperimentError(
                FailureKind.FALLBACK,
                f"{self._compiled() - compiled:g} compilations fell into the timing of batch size {batch_size}: "
                "the requests keep bringing something new to the compiler",
                fix="Set the runtime's dynamic to true, or choose torch-eager.",
            )
        generating = self._task == "text-generation"
        return {
            "latency_ns": [t[0] for t in timed],
            "ttft_ns": [t[1] for t in timed] if generating else [],
            "token_gaps_ns": [gap for t in timed for gap in t[2]],
            "tokens_out": self._new_tokens * batch_size * requests if generating else 0,
            "wall_ns": wall,
        }

    def adapters(self, *, batch_size: int) -> dict[str, Any]:
        """What several adapters on one base cost and answer; empty if the artifact has fewer than two."""
        session = self._session
        if not isinstance(session, AdapterSession) or len(session.adapters()) < 2:
            return {}
        from experiments.parts.adapter_readings import adapter_readings

        rows = self._batch(max(batch_size, len(session.adapters())))
        device: DeviceKind = "cuda" if self._cuda else "cpu"
        return {"readings": adapter_readings(session, self._folder, rows, self._pack.probe(), self._task, device)}

    def memory(self) -> dict[str, Any]:
        """Peaks of this fresh process up to now; it starts no children (the count proves it)."""
        import psutil

        children = psutil.Process().children(recursive=True)
        reading: dict[str, Any] = dict(self._session.memory())
        reading["rss_tree_peak"] = peak_rss() + sum(child.memory_info().rss for child in children)
        reading["children"] = len(children)
        reading["nvml_process_peak"] = self._nvml() if self._cuda else None
        reading.update(self._session.compilation())
        return reading

    def _nvml(self) -> int | None:
        import pynvml

        pynvml.nvmlInit()
        used = 0
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid():
                    used += process.usedGpuMemory or 0
        return used or None

    def evaluate(self, *, out: str) -> dict[str, Any]:
        """Answer the whole evaluation pack and write what the quality metrics need into folder ``out``."""
        batches = list(self._pack.evaluation())
        if not batches:
            return {"examples": 0}
        if self._task == "text-generation":
            return self._score_tokens(batches, Path(out))
        rows: list[int] = []
        answers: list[npt.NDArray[Any]] = []
        for number, (inputs, entry) in enumerate(batches):
            output = self._session.forward(inputs)
            if self._task == "feature-extraction":
                output = pooled(output, inputs["attention_mask"])
            answers.append(output)
            rows += entry["rows"]
            self._reply({"kind": "progress", "fraction": (number + 1) / len(batches)})
        joined = np.concatenate(answers)
        ordered = np.empty_like(joined)
        ordered[rows] = joined
        _finite(ordered)
        np.save(Path(out) / ("embeddings.npy" if self._task == "feature-extraction" else "logits.npy"), ordered)
        return {"examples": len(ordered)}

    def _score_tokens(self, batches: list[tuple[Arrays, dict[str, Any]]], out: Path) -> dict[str, Any]:
        """``token_log_probs.npy``: every scored token; ``logits.npy``: log-probabilities of the first tokens."""
        keep = int(self._pack.manifest["fidelity_tokens"])
        scored: list[npt.NDArray[np.float64]] = []
        targets: list[npt.NDArray[np.int64]] = []
        store: np.memmap[Any, np.dtype[np.float32]] | None = None
        kept = 0
        for number, (inputs, _) in enumerate(batches):
            ids = np.asarray(inputs["input_ids"])
            logits = self._session.forward(inputs)[0, :-1].astype(np.float64)
            _finite(logits)
            logits -= logits.max(axis=-1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            following = ids[0, 1:]
            scored.append(logits[np.arange(len(following)), following])
            if store is None:
                store = np.lib.format.open_memmap(
                    out / "logits.npy", mode="w+", dtype=np.float32, shape=(keep, logits.shape[-1])
                )
            part = logits[: keep - kept]
            if len(part):
                store[kept : kept + len(part)] = part
                targets.append(following[: len(part)])
                kept += len(part)
            self._reply({"kind": "progress", "fraction": (number + 1) / len(batches)})
        if store is not None:
            store.flush()
        np.save(out / "token_log_probs.npy", np.concatenate(scored))
        np.save(out / "targets.npy", np.concatenate(targets))
        return {"examples": len(batches)}


def _finite(outputs: npt.NDArray[Any]) -> None:
    bad = int(outputs.size - np.isfinite(outputs).sum())
    if bad:
        raise ExperimentError(
            FailureKind.CANARY,
            f"{bad:,} of {outputs.size:,} outputs over the evaluation data are not finite; no quality can be told",
            fix="The precision is too narrow for this model's values: keep the layers that overflow wide.",
            nonfinite=bad,
        )
