"""int8-dynamic."""

from __future__ import annotations

from typing import Literal

from experiments.protocols import Technique


class Int8Dynamic(Technique):
    """int8-dynamic."""

    technique: Literal["int8-dynamic"] = "int8-dynamic"
