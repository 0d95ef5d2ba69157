"""The card of an artifact: a small JSON file beside the weights that says how to open them.

Written by a runtime when it saves, read by the same runtime in the measured process, without torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from experiments.protocols import Form, Task
from experiments.records import ExperimentError, FailureKind

CARD = "artifact.json"


class ArtifactCard(BaseModel):
    """How to open an artifact.

    Attributes:
        architecture: the Hugging Face class that was saved, e.g. ``BertForSequenceClassification``.
        weights_bytes: bytes of all unique weight tensors in the files (a tied tensor counts once).
        eos_ignored: generation is timed over a fixed number of tokens, whatever the model says about its end.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    form: Form
    task: Task
    architecture: str
    weights_bytes: int
    eos_ignored: bool = True


def write_card(folder: Path, card: ArtifactCard) -> None:
    """Write ``card`` into ``folder``."""
    (folder / CARD).write_text(card.model_dump_json(indent=2) + "\n")


def read_card(folder: Path) -> ArtifactCard:
    """The card in ``folder``.

    Raises:
        ExperimentError: ``bad_model`` if there is none or it can't be read.
    """
    path = folder / CARD
    try:
        return ArtifactCard.model_validate_json(path.read_text())
    except FileNotFoundError:
        message = f"'{folder.name}' is not an artifact of this engine: it has no {CARD}"
    except (ValidationError, UnicodeDecodeError) as error:
        message = f"{CARD} of '{folder.name}' can't be read: {str(error).splitlines()[0]}"
    raise ExperimentError(FailureKind.BAD_MODEL, message, fix="Build the artifact again.")


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of ``folder`` as plain data.

    Raises:
        ExperimentError: ``bad_model`` if it is missing or not a JSON object.
    """
    path = folder / "config.json"
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        data = None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(FailureKind.BAD_MODEL, f"config.json of '{folder.name}' is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"'{folder.name}' has no config.json with a JSON object",
            fix="Give a Hugging Face folder: config.json beside the weights.",
        )
    return data
