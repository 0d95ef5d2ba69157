"""torch-eager."""

from __future__ import annotations

from typing import Literal

from experiments.protocols import Runtime


class TorchEager(Runtime):
    """torch-eager."""

    kind: Literal["torch-eager"] = "torch-eager"
