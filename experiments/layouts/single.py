"""The whole model on one device."""

from __future__ import annotations

from typing import Literal

from experiments.protocols import Layout


class Single(Layout):
    """No sharding: one process, one device."""

    title = "Single device"
    summary = "The whole model on one device; what every other layout is compared with."

    kind: Literal["single"] = "single"

    def world_size(self) -> int:
        """One rank."""
        return 1
