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
        from experiments.parts.artifact_card import ArtifactCard, write_card
        from experiments.parts.companions import copy_companions
        from experiments.parts.tied_weights import unique_bytes
        from experiments.parts.torch_files import save_module

        assert not steps, "a torch runtime has no steps after saving"
        save_module(module, folder)
        copy_companions(context.source, folder)
        card = ArtifactCard(
            form="torch",
            task=context.task,
            architecture=type(module).__name__,
            weights_bytes=unique_bytes(module),
        )
        write_card(folder, card)

    def open(self, folder: Path, device: DeviceKind, threads: int) -> Session:
        """Load the artifact; see ``parts.torch_session``.

        Raises:
            ExperimentError: ``bad_model`` if it does not load, ``fallback`` if the device is not there.
        """
        import sys

        # transformers imports scikit-learn for a decoding strategy that is not used here: a second of every start.
        sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]

        from experiments.parts.artifact_card import read_card
        from experiments.parts.tied_weights import unique_bytes
        from experiments.parts.torch_files import load_module
        from experiments.parts.torch_session import TorchSession, set_up

        card = read_card(folder)
        set_up(device, threads)
        module = load_module(folder, device)
        return TorchSession(module, card.task, device, unique_bytes(module))
