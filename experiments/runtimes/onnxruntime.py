"""onnxruntime."""

from __future__ import annotations

from typing import Literal

from experiments.protocols import Runtime


class OnnxRuntime(Runtime):
    """onnxruntime."""

    kind: Literal["onnxruntime"] = "onnxruntime"
