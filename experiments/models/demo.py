"""Real models that need no hub."""

from __future__ import annotations

from typing import Literal

from experiments.protocols import ModelSource

DemoName = Literal["minilm-reviews", "smollm2-135m", "digits-vit"]


class DemoModel(ModelSource):
    """A demo model by name."""

    source: Literal["demo"] = "demo"
    name: DemoName
