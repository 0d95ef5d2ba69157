"""PyTorch, operator by operator, as ``model(...)`` does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from experiments.protocols import BuildContext, DeviceKind, Runtime, Session, Technique


class TorchEager(Runtime):
    """The model as PyTorch runs it without any compilation."""

    title = "PyTorch eager"
    summary = "PyTorch without compilation: the usual starting point."
    origin = "Paszke et al., PyTorch, arXiv:1912.01703"

    kind: Literal["torch-eager"] = "torch-eager"

    form = "torch"
    devices = frozenset({"cpu", "cuda"})
    imports_torch = True

    def libraries(self) -> tuple[str, ...]:
        """Distributions whose versions belong to the fingerprint."""
        return ("torch", "transformers", "safetensors", "numpy")

    def save(self, module: Any, folder: Path, context: BuildContext, steps: Sequence[Technique]) -> None:
        """Write config, safetensors, tokenizer files and the card.

        Raises:
            ExperimentError: ``bad_model`` if config and tensors contradict each other about a tie.
        """
        from experiments.parts.torch_artifact import write_torch_artifact

        assert not steps, "a torch runtime has no steps after saving"
        write_torch_artifact(module, folder, context)

    def open(self, folder: Path, device: DeviceKind, threads: int) -> Session:
        """Load the artifact; see ``parts.torch_session``.

        Raises:
            ExperimentError: ``bad_model`` if it does not load, ``fallback`` if the device is not there.
        """
        from experiments.parts.tied_weights import unique_bytes
        from experiments.parts.torch_artifact import read_torch_artifact
        from experiments.parts.torch_session import TorchSession

        module, card = read_torch_artifact(folder, device, threads)
        return TorchSession(module, card.task, device, unique_bytes(module))
