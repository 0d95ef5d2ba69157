"""An ONNX graph in a measured process: numpy in, numpy out. Neither torch nor transformers is ever imported here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from experiments.parts.decoding import check_prompt, max_positions
from experiments.parts.onnx_probe import complete_inputs, empty_past, first_non_finite_node, input_dtype
from experiments.protocols import Generated
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from experiments.parts.artifact_card import ArtifactCard
    from experiments.protocols import DeviceKind

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
#: Operators that do the work of a model: on the wrong device they are a fall-back, whatever the rest does.
_HEAVY = frozenset(
    "MatMul Gemm FusedMatMul MatMulInteger MatMulNBits DynamicQuantizeMatMul QLinearMatMul Conv ConvInteger "
    "QLinearConv Attention MultiHeadAttention GroupQueryAttention LayerNormalization Softmax".split()
)


class OnnxSession:
    """Runs one graph with ONNX Runtime; one instance a process."""

    def __init__(
        self,
        path: Path,
        card: ArtifactCard,
        config: dict[str, Any],
        device: DeviceKind,
        threads: int,
        optimization: str = "all",
    ) -> None:
        self._path = path
        self._card = card
        self._config = config
        self._device = device
        self._threads = threads
        self._optimization = optimization
        self._session = open_graph(path, device, threads, optimization)
        self._inputs = {slot.name: slot for slot in self._session.get_inputs()}
        names = [slot.name for slot in self._session.get_outputs()]
        wanted = "last_hidden_state" if card.task == "feature-extraction" else "logits"
        if wanted not in names:
            raise ExperimentError(
                FailureKind.BAD_MODEL,
                f"'{path.name}' has no output '{wanted}' for {card.task}, only {', '.join(names)}",
            )
        self._output = wanted
        self._presents = {
            name: name.replace("present.", "past_key_values.", 1) for name in names if name.startswith("present.")
        }

    def forward(self, inputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """See ``protocols.Session.forward``. Decoders get an empty cache."""
        (output,) = self._session.run([self._output], self._feeds(inputs))
        result: npt.NDArray[np.float32] = output.astype(np.float32, copy=False)
        return result

    def generate(self, input_ids: npt.NDArray[np.int64], new_tokens: int) -> Generated:
        """Greedy with the graph's key-value cache; exactly ``new_tokens`` tokens, the end-of-text token ignored.

        The cache stays in ONNX Runtime's own memory from step to step (bound, never turned into numpy). The graph
        computes the logits of every prompt position, so time to first token includes the output head over all of them.
        """
        if not self._presents:
            raise ExperimentError(FailureKind.UNSUPPORTED, f"a graph for {self._card.task} does not generate text")
        check_prompt(input_ids, new_tokens, max_positions(self._config))
        rows, length = input_ids.shape
        started = time.monotonic_ns()
        binding = self._session.io_binding()
        for name, array in empty_past(self._session, rows).items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, self._device, 0))
        current = np.ascontiguousarray(input_ids, dtype=np.int64)
        tokens, times = [], []
        for step in range(new_tokens):
            seen = length + step
            self._bind(binding, "input_ids", current)
            self._bind(binding, "attention_mask", np.ones((rows, seen), np.int64))
            first = 0 if step == 0 else seen - 1
            self._bind(binding, "position_ids", np.broadcast_to(np.arange(first, seen, dtype=np.int64), current.shape))
            binding.bind_output(self._output, "cpu")
            for name in self._presents:
                binding.bind_output(name, self._device)
            self._session.run_with_iobinding(binding)
            bound = (self._output, *self._presents)  # outputs come in the order in which they were first bound
            outputs = dict(zip(bound, binding.get_outputs(), strict=True))
            for present, past in self._presents.items():
                binding.bind_ortvalue_input(past, outputs[present])
            current = outputs[self._output].numpy()[:, -1, :].argmax(axis=-1, keepdims=True).astype(np.int64)
            times.append(time.monotonic_ns())
            tokens.append(current)
        return Generated(tokens=np.concatenate(tokens, axis=1), times_ns=tuple(times), started_ns=started)

    def weights_bytes(self) -> int | None:
        """Bytes of all weight tensors in the file; ONNX Runtime may hold packed or widened copies besides (see RSS)."""
        return self._card.weights_bytes

    def proof(self) -> dict[str, Any]:
        """Providers of the session and how many nodes each was given.

        Raises:
            ExperimentError: ``fallback`` if the provider is not the one asked for, or heavy nodes went elsewhere.
        """
        wanted = _PROVIDERS[self._device]
        providers = self._session.get_providers()
        nodes: Counter[str] = Counter()
        strayed: Counter[str] = Counter()
        for part in self._session.get_provider_graph_assignment_info():
            for node in part.get_nodes():
                nodes[part.ep_name] += 1
                if part.ep_name != wanted and node.op_type in _HEAVY:
                    strayed[node.op_type] += 1
        if wanted not in providers or strayed or not nodes[wanted]:
            what = ", ".join(f"{count} {kind}" for kind, count in strayed.items()) or "everything"
            raise ExperimentError(
                FailureKind.FALLBACK,
                f"{wanted} was asked for, but ONNX Runtime put {what} on another provider ({', '.join(providers)})",
                fix="Set resources.device to cpu, or choose a recipe with kernels for this device.",
                nodes=dict(nodes),
            )
        return {
            "device": self._device,
            "providers": providers,
            "nodes": dict(nodes),
            "threads": self._threads,
            "optimization": self._optimization,
        }

    def compilation(self) -> dict[str, float]:
        """The graph is optimized while it is loaded; nothing is compiled for a shape."""
        return {}

    def memory(self) -> dict[str, int | None]:
        """Torch's peaks do not exist here; the process's own memory is what counts."""
        return {"torch_peak_allocated": None, "torch_peak_reserved": None}

    def first_non_finite(self, inputs: Mapping[str, npt.NDArray[Any]]) -> str | None:
        """Name of the first node, in execution order, with a NaN or positive infinity (-inf is what masks hold).

        Float16 values count as float16 even where the CPU provider computes them wide.
        """
        return first_non_finite_node(self._path, self._feeds(inputs), self._threads)

    def _feeds(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Exactly the inputs that the graph wants, in its types."""
        rows = next(iter(inputs.values())).shape[0]
        past = empty_past(self._session, rows) if self._presents else {}
        return {**past, **complete_inputs(self._session, inputs)}

    def _bind(self, binding: Any, name: str, array: npt.NDArray[np.int64]) -> None:
        if name in self._inputs:
            binding.bind_cpu_input(name, np.ascontiguousarray(array, dtype=input_dtype(self._inputs[name])))


_LEVELS = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def open_graph(path: Path, device: DeviceKind, threads: int, optimization: str = "all") -> Any:
    """An ``InferenceSession`` on ``device`` with ``threads`` threads, proven not to have fallen back.

    ``optimization``: disabled, basic, extended or all, as ONNX Runtime's own levels.

    Raises:
        ExperimentError: ``fallback`` if the provider is not active, ``bad_model`` if the file does not load.
    """
    wanted = _PROVIDERS[device]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.graph_optimization_level = _LEVELS[optimization]
    options.log_severity_level = 4  # its only news would be the fall-back that is checked below
    # Threads spin between the operators of one run (without it, a small encoder is 20 % slower), but stop at its end:
    # the idle partner of a paired measurement must not burn the cores of the one that is timed.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    providers = [wanted] if device == "cpu" else [wanted, _PROVIDERS["cpu"]]
    missing = ExperimentError(
        FailureKind.FALLBACK,
        f"{wanted} was asked for, but ONNX Runtime {onnxruntime.__version__} can't use it on this machine",
        fix="Set resources.device to cpu, or run on a worker with a GPU and its CUDA libraries.",
    )
    if wanted not in onnxruntime.get_available_providers():
        raise missing
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime's exceptions share no public base
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExperimentError(
            FailureKind.BAD_MODEL, f"'{path.name}' does not load: {first}", fix="Build the artifact again."
        ) from error
    if session.get_providers()[0] != wanted:  # get_available_providers() claims CUDA wherever it was compiled in
        raise missing
    return session
