"""A torch model behind ``torch.compile`` in a measured process: what was compiled is counted, never hidden."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from experiments.parts.torch_session import TorchSession
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from experiments.protocols import DeviceKind, Generated, Task


T = TypeVar("T")


class CompiledSession(TorchSession):
    """Runs what ``torch.compile`` makes of a module. Shapes are compiled when they are first met.

    Args:
        mode: as for ``torch.compile``.
        dynamic: None compiles the first shape as it is and later ones for any size.
        backend: what generates the kernels from a traced graph.
        limit: compilations of one function after which torch would quietly run it eagerly; that is a failure here.
    """

    def __init__(
        self,
        module: Any,
        task: Task,
        device: DeviceKind,
        weights_bytes: int,
        *,
        mode: str,
        dynamic: bool | None,
        limit: int,
        backend: str = "inductor",
    ) -> None:
        import torch._dynamo
        from torch._dynamo.callback import on_compile_end, on_compile_start

        super().__init__(module, task, device, weights_bytes)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch._dynamo.config.recompile_limit = limit
        torch._dynamo.config.accumulated_recompile_limit = 4 * limit
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        self._seconds = 0.0
        self._compilations = 0
        self._recompiles = 0
        self._started = 0.0
        on_compile_start(self._begin)
        on_compile_end(self._end)
        self._backend = backend
        self._call = torch.compile(
            module, dynamic=dynamic, backend=backend, **({"mode": mode} if backend == "inductor" else {})
        )

    def _begin(self, about: Any) -> None:
        self._started = time.monotonic()
        # 'frame/number of this frame's compilations before, restarts': the same code again is a recompilation.
        again = str(about.compile_id).rpartition("/")[2].partition("_")[0]
        self._compilations += 1
        self._recompiles += int(again.isdigit() and int(again) > 0)

    def _end(self, about: Any) -> None:
        self._seconds += time.monotonic() - self._started

    def forward(self, inputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """See ``protocols.Session.forward``.

        Raises:
            ExperimentError: ``fallback`` if torch gave up compiling, ``unsupported`` if the compiler failed.
        """
        return _typed(lambda: super(CompiledSession, self).forward(inputs))

    def generate(self, input_ids: npt.NDArray[np.int64], new_tokens: int) -> Generated:
        """See ``protocols.Session.generate``; raises like :meth:`forward`."""
        return _typed(lambda: super(CompiledSession, self).generate(input_ids, new_tokens))

    def compilation(self) -> dict[str, float]:
        """Seconds and counts of this process so far; a graph break is a place that Python itself runs."""
        counted = torch._dynamo.utils.counters
        # A break at a branch on data is not among the counted reasons, but the code is resumed after it.
        breaks = max(sum(counted["graph_break"].values()), len(counted["resumes"]))
        return {
            "compile_s": round(self._seconds, 3),
            "compilations": float(self._compilations),
            "recompiles": float(self._recompiles),
            "graph_breaks": float(breaks),
        }

    def proof(self) -> dict[str, Any]:
        """As the eager session's, with the compiler that is used."""
        return {**super().proof(), "compiler": self._backend}

    def first_non_finite(self, inputs: Mapping[str, npt.NDArray[Any]]) -> str | None:
        """Looked for in the module itself: inside a compiled graph there are no layers."""
        compiled, self._call = self._call, self._module
        try:
            return super().first_non_finite(inputs)
        finally:
            self._call = compiled


def _typed(run: Callable[[], T]) -> T:
    """``run()``, with the compiler's exceptions as typed failures."""
    from torch._dynamo import exc

    try:
        return run()
    except exc.FailOnRecompileLimitHit as error:
        raise ExperimentError(
            FailureKind.FALLBACK,
            "torch gave up compiling: more shapes than the limit on compilations of one function were met, "
            f"and the rest would have run eagerly ({_first_line(error)})",
            fix="Set the runtime's dynamic to true, raise its recompile_limit, or choose torch-eager.",
            field="runtime.recompile_limit",
        ) from error
    except exc.TorchDynamoException as error:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"torch.compile can't compile this model: {_first_line(error)}",
            fix="Choose torch-eager or onnxruntime for it.",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
