"""bf16."""

from __future__ import annotations

from typing import Literal

from experiments.protocols import Technique


class Bf16(Technique):
    """bf16."""

    technique: Literal["bf16"] = "bf16"
