"""The artifact of a torch runtime: a Hugging Face folder with a card. Shared by all runtimes that run torch modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.parts.artifact_card import ArtifactCard
    from experiments.protocols import BuildContext, DeviceKind


def write_torch_artifact(module: Any, folder: Path, context: BuildContext) -> None:
    """Write config, safetensors, tokenizer files and the card.

    Raises:
        ExperimentError: ``bad_model`` if config and tensors contradict each other about a tie.
    """
    from experiments.parts.artifact_card import ArtifactCard, write_card
    from experiments.parts.companions import copy_companions
    from experiments.parts.tied_weights import unique_bytes
    from experiments.parts.torch_files import save_module

    save_module(module, folder)
    copy_companions(context.source, folder)
    card = ArtifactCard(
        form="torch",
        task=context.task,
        architecture=type(module).__name__,
        weights_bytes=unique_bytes(module),
    )
    write_card(folder, card)


def read_torch_artifact(folder: Path, device: DeviceKind, threads: int) -> tuple[Any, ArtifactCard]:
    """The module on ``device``, ready to answer, and its card; fixes threads and determinism of this process.

    Raises:
        ExperimentError: ``bad_model`` if it does not load, ``fallback`` if the device is not there.
    """
    import sys

    # transformers imports scikit-learn for a decoding strategy that is not used here: a second of every start.
    sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]

    from experiments.parts.artifact_card import read_card
    from experiments.parts.torch_files import load_module
    from experiments.parts.torch_session import set_up

    card = read_card(folder)
    set_up(device, threads)
    return load_module(folder, device), card
