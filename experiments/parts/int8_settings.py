"""What the dynamic 8-bit quantizers may be told, in one place for both forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DynamicSettings:
    """See the fields of ``int8-dynamic``; ``technique`` is the name under which the effect is told."""

    technique: str
    per_channel: bool
    reduce_range: bool | Literal["auto"]
    embeddings: bool
