"""An ONNX graph compiled by OpenVINO in a measured process: numpy in, numpy out, no torch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.parts.decoding import check_prompt, max_positions
from experiments.parts.onnx_probe import complete_inputs, empty_past, first_non_finite_node
from experiments.protocols import Generated
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from experiments.parts.artifact_card import ArtifactCard

#: OpenVINO's name of an element type -> ONNX's.
_TYPES = {
    "f32": "tensor(float)",
    "f16": "tensor(float16)",
    "f64": "tensor(double)",
    "i64": "tensor(int64)",
    "i32": "tensor(int32)",
    "boolean": "tensor(bool)",
}
_DEVICE = "CPU"


class OpenVinoSession:
    """Runs one graph on the CPU; one instance a process."""

    def __init__(self, path: Path, card: ArtifactCard, config: dict[str, Any], threads: int) -> None:
        self._path = path
        self._card = card
        self._config = config
        self._threads = threads
        self._compiled = _compile(path, threads)
        self._request = self._compiled.create_infer_request()
        self._slots = [_slot(port) for port in self._compiled.inputs]
        names = [port.get_any_name() for port in self._compiled.outputs]
        self._output = "last_hidden_state" if card.task == "feature-extraction" else "logits"
        if self._output not in names:
            raise ExperimentError(
                FailureKind.BAD_MODEL,
                f"'{path.name}' has no output '{self._output}' for {card.task}, only {', '.join(names)}",
            )
        self._presents = {
            name: name.replace("present.", "past_key_values.", 1) for name in names if name.startswith("present.")
        }

    def get_inputs(self) -> list[SimpleNamespace]:
        """The graph's inputs with ``name``, ``shape`` and ``type``, as ONNX Runtime tells them."""
        return self._slots

    def forward(self, inputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """See ``protocols.Session.forward``. Decoders get an empty cache."""
        self._request.infer(self._feeds(inputs), share_inputs=True)
        output = self._request.get_tensor(self._output).data
        result: npt.NDArray[np.float32] = np.array(output, dtype=np.float32)
        return result

    def generate(self, input_ids: npt.NDArray[np.int64], new_tokens: int) -> Generated:
        """Greedy with the graph's key-value cache; exactly ``new_tokens`` tokens, the end-of-text token ignored.

        The cache is handed from outputs to inputs, so each step copies it once. The graph computes the logits of every
        prompt position.
        """
        if not self._presents:
            raise ExperimentError(FailureKind.UNSUPPORTED, f"a graph for {self._card.task} does not generate text")
        check_prompt(input_ids, new_tokens, max_positions(self._config))
        rows, length = input_ids.shape
        wanted = {slot.name for slot in self._slots}
        started = time.monotonic_ns()
        past: dict[str, Any] = dict(empty_past(self, rows))
        current = np.ascontiguousarray(input_ids, dtype=np.int64)
        tokens, times = [], []
        for step in range(new_tokens):
            seen = length + step
            first = 0 if step == 0 else seen - 1
            positions = np.broadcast_to(np.arange(first, seen, dtype=np.int64), current.shape)
            feeds = {
                "input_ids": current,
                "attention_mask": np.ones((rows, seen), np.int64),
                "position_ids": np.ascontiguousarray(positions),
            }
            self._request.infer({**past, **{n: a for n, a in feeds.items() if n in wanted}}, share_inputs=True)
            past = {to: np.array(self._request.get_tensor(name).data) for name, to in self._presents.items()}
            logits = self._request.get_tensor(self._output).data
            current = np.asarray(logits[:, -1, :]).argmax(axis=-1).reshape(rows, 1).astype(np.int64)
            times.append(time.monotonic_ns())
            tokens.append(current)
        return Generated(tokens=np.concatenate(tokens, axis=1), times_ns=tuple(times), started_ns=started)

    def weights_bytes(self) -> int | None:
        """Bytes of all weight tensors in the file; OpenVINO may hold packed copies besides (see RSS)."""
        return self._card.weights_bytes

    def proof(self) -> dict[str, Any]:
        """Devices that the compiled graph runs on, and its nodes by the number format they compute in.

        Raises:
            ExperimentError: ``fallback`` if it is another device than the CPU.
        """
        devices = [str(name) for name in self._compiled.get_property("EXECUTION_DEVICES")]
        if devices != [_DEVICE]:
            raise ExperimentError(
                FailureKind.FALLBACK, f"{_DEVICE} was asked for, but OpenVINO runs on {', '.join(devices) or 'nothing'}"
            )
        nodes: Counter[str] = Counter()
        for node in self._compiled.get_runtime_model().get_ops():
            about = node.get_rt_info()
            nodes[str(about["runtimePrecision"].value) if "runtimePrecision" in about else "unknown"] += 1
        return {
            "device": "cpu",
            "execution_devices": devices,
            "nodes_by_precision": dict(nodes),
            "threads": int(self._compiled.get_property("INFERENCE_NUM_THREADS")),
        }

    def compilation(self) -> dict[str, float]:
        """The graph is compiled while it is loaded, for any shape."""
        return {}

    def memory(self) -> dict[str, int | None]:
        """Torch's peaks do not exist here; the process's own memory is what counts."""
        return {"torch_peak_allocated": None, "torch_peak_reserved": None}

    def first_non_finite(self, inputs: Mapping[str, npt.NDArray[Any]]) -> str | None:
        """Name of the first node of the ONNX graph with a NaN or positive infinity, as the reference runtime has it."""
        return first_non_finite_node(self._path, self._feeds(inputs), self._threads)

    def _feeds(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        rows = next(iter(inputs.values())).shape[0]
        past = empty_past(self, rows) if self._presents else {}
        return {**past, **complete_inputs(self, inputs)}


def _slot(port: Any) -> SimpleNamespace:
    shape = [axis.get_length() if axis.is_static else "dynamic" for axis in port.get_partial_shape()]
    return SimpleNamespace(name=port.get_any_name(), shape=shape, type=_TYPES[port.get_element_type().get_type_name()])


def _compile(path: Path, threads: int) -> Any:
    """The graph, compiled for the CPU with ``threads`` threads and one request at a time."""
    import openvino  # an extra: only who chose this runtime has it

    core = openvino.Core()
    try:
        model = core.read_model(path)
    except RuntimeError as error:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"OpenVINO can't read this graph: {_reason(error)}",
            fix="Choose runtime onnxruntime for this recipe.",
        ) from error
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",  # else weights in float32 may be computed narrower where the CPU can
        "ENABLE_CPU_PINNING": False,  # the cores of this process are chosen by who started it
    }
    try:
        return core.compile_model(model, _DEVICE, settings)
    except RuntimeError as error:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"OpenVINO can't compile this graph: {_reason(error)}",
            fix="Choose runtime onnxruntime for this recipe.",
        ) from error


def _reason(error: Exception) -> str:
    """The line that says what is wrong, without the library's own file names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Exception from" not in line and not line.startswith("Check '")]
    return (telling or lines or [type(error).__name__])[0][:300]
