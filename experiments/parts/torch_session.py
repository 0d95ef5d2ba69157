"""A torch model in a measured process: arrays in, arrays out."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.parts.decoding import check_prompt, max_positions, position_ids
from experiments.parts.packed_layers import packed_layers
from experiments.protocols import Generated
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from experiments.protocols import DeviceKind, Task


class TorchSession:
    """Runs a Hugging Face module eagerly; one instance a process.

    A runtime that compiles puts what it made of the module into ``_call``.
    """

    def __init__(self, module: Any, task: Task, device: DeviceKind, weights_bytes: int) -> None:
        self._module = module
        self._call: Callable[..., Any] = module
        self._task = task
        self._device = torch.device(device)
        self._weights_bytes = weights_bytes
        self._accepts = frozenset(inspect.signature(module.forward).parameters)

    def forward(self, inputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """See ``protocols.Session.forward``. Copies to and from the device are inside."""
        with torch.inference_mode():
            return self._result(self._run(inputs))

    def generate(self, input_ids: npt.NDArray[np.int64], new_tokens: int) -> Generated:
        """Greedy, with the model's own key-value cache; exactly ``new_tokens`` tokens, the end-of-text token ignored.

        Not ``transformers.generate``: its bookkeeping would be part of every token's time.
        """
        if self._task != "text-generation":
            raise ExperimentError(FailureKind.UNSUPPORTED, f"a model for {self._task} does not generate text")
        check_prompt(input_ids, new_tokens, max_positions(self._module.config.to_dict()))
        last_only = {"logits_to_keep": 1} if "logits_to_keep" in self._accepts else {}
        started = time.monotonic_ns()
        times, tokens = [], []
        with torch.inference_mode():
            current = torch.from_numpy(np.ascontiguousarray(input_ids, dtype=np.int64)).to(self._device)
            cache = None
            for _ in range(new_tokens):
                output = self._call(input_ids=current, past_key_values=cache, use_cache=True, **last_only)
                cache = output.past_key_values
                current = output.logits[:, -1, :].argmax(dim=-1, keepdim=True)
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
                times.append(time.monotonic_ns())
                tokens.append(current)
            stacked = torch.cat(tokens, dim=1).cpu().numpy()
        return Generated(tokens=stacked, times_ns=tuple(times), started_ns=started)

    def weights_bytes(self) -> int | None:
        """Bytes of unique storages, packed integer layers included."""
        return self._weights_bytes

    def proof(self) -> dict[str, Any]:
        """Where the tensors lie and with how many threads torch works.

        Raises:
            ExperimentError: ``fallback`` if a tensor is not on the device that was asked for.
        """
        placed: dict[str, int] = {}
        dtypes: dict[str, int] = {}
        for tensor in (*self._module.parameters(), *self._module.buffers()):
            placed[tensor.device.type] = placed.get(tensor.device.type, 0) + 1
            name = str(tensor.dtype).removeprefix("torch.")
            dtypes[name] = dtypes.get(name, 0) + tensor.numel()
        elsewhere = {kind: count for kind, count in placed.items() if kind != self._device.type}
        if elsewhere:
            raise ExperimentError(
                FailureKind.FALLBACK,
                f"{self._device.type} was asked for, but tensors lie on {elsewhere}",
                placed=placed,
            )
        packed = packed_layers(self._module).values()
        return {
            "device": self._device.type,
            "tensors": placed,
            "elements_by_dtype": dtypes,
            "packed_layers": len(packed),
            "packed_engines": sorted({layer.engine() for layer in packed}),
            "threads": torch.get_num_threads(),
        }

    def adapters(self) -> tuple[str, ...]:
        """The adapters beside the base model; none where it is compiled, since each would be compiled anew."""
        from experiments.parts.adapters import held, names_of

        model = held(self._module) if self._call is self._module else None
        return names_of(model) if model is not None else ()

    def use_adapter(self, name: str) -> None:
        """See ``protocols.AdapterSession.use_adapter``."""
        from experiments.parts.adapters import held

        model = held(self._module)
        if model is None:
            raise ExperimentError(FailureKind.UNSUPPORTED, f"there is no adapter {name!r}: the model has none")
        model.set_adapter(name)

    def forward_mixed(self, inputs: Mapping[str, npt.NDArray[Any]], names: Sequence[str]) -> npt.NDArray[np.float32]:
        """See ``protocols.AdapterSession.forward_mixed``."""
        from experiments.parts.adapters import held

        model = held(self._module)
        if model is None:
            raise ExperimentError(FailureKind.UNSUPPORTED, "a batch can't mix adapters: the model has none")
        with torch.inference_mode():
            return self._result(model(**self._feeds(inputs), adapter_names=list(names)))

    def compilation(self) -> dict[str, float]:
        """Nothing is compiled."""
        return {}

    def memory(self) -> dict[str, int | None]:
        """Peaks of CUDA's caching allocator since the session was opened; None on a CPU."""
        if self._device.type != "cuda":
            return {"torch_peak_allocated": None, "torch_peak_reserved": None}
        return {
            "torch_peak_allocated": torch.cuda.max_memory_allocated(self._device),
            "torch_peak_reserved": torch.cuda.max_memory_reserved(self._device),
        }

    def first_non_finite(self, inputs: Mapping[str, npt.NDArray[Any]]) -> str | None:
        """Name of the first module, in order of execution, whose output has a NaN or infinity."""
        found: list[str] = []

        def watch(name: str) -> Any:
            def hook(module: Any, args: Any, output: Any) -> None:
                first = output[0] if isinstance(output, tuple) else output
                values = isinstance(first, torch.Tensor) and first.is_floating_point()
                if values and not found and not bool(torch.isfinite(first).all()):
                    found.append(f"{name} ({type(module).__name__})")

            return hook

        leaves = [(n, m) for n, m in self._module.named_modules() if not any(True for _ in m.children())]
        handles = [m.register_forward_hook(watch(n)) for n, m in leaves]
        try:
            with torch.inference_mode():
                output = self._result(self._run(inputs))
        finally:
            for handle in handles:
                handle.remove()
        if not found and not np.isfinite(output).all():
            return "the model's output"
        return found[0] if found else None

    def _run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> Any:
        return self._call(**self._feeds(inputs))

    def _feeds(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        feeds: dict[str, Any] = {}
        for name, array in inputs.items():
            if name in self._accepts:
                tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
                feeds[name] = tensor.to(self._module.dtype) if tensor.is_floating_point() else tensor
        if self._task == "text-generation":
            feeds["use_cache"] = False
            if "position_ids" in self._accepts and "attention_mask" in inputs:
                feeds["position_ids"] = torch.from_numpy(position_ids(inputs["attention_mask"])).to(self._device)
        return feeds

    def _result(self, output: Any) -> npt.NDArray[np.float32]:
        chosen = output.last_hidden_state if self._task == "feature-extraction" else output.logits
        result: npt.NDArray[np.float32] = chosen.to(torch.float32).cpu().numpy()
        return result


def set_up(device: DeviceKind, threads: int) -> None:
    """Fix threads and determinism of this process, before anything is loaded.

    Raises:
        ExperimentError: ``fallback`` if ``cuda`` is asked for and torch can't use it.
    """
    import os

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic cuBLAS; read at its first use
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    if device == "cuda":
        if not torch.cuda.is_available():
            built = "has no CUDA" if torch.version.cuda is None else f"is for CUDA {torch.version.cuda}, no device seen"
            raise ExperimentError(
                FailureKind.FALLBACK,
                f"cuda was asked for, but this torch ({torch.__version__}) {built}",
                fix="Set resources.device to cpu, or run on a worker with a GPU.",
            )
        torch.backends.cuda.matmul.allow_tf32 = False  # TF32 would make an FP32 baseline something else
        torch.backends.cudnn.allow_tf32 = False
        torch.cuda.reset_peak_memory_stats()
