"""fp16."""

from __future__ import annotations

from typing import Literal

from experiments.protocols import Technique


class Fp16(Technique):
    """fp16."""

    technique: Literal["fp16"] = "fp16"
