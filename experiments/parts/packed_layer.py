"""A layer whose weights are held as narrow codes instead of a float parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch


class PackedLayer(torch.nn.Module):
    """Base of all packed layers: what saving, loading and counting need to know of them.

    A subclass holds its tensors as non-persistent buffers (so that they follow ``.to(device)`` and are not in the
    state dict), or inside an object of its kernel. Two layers may share tensors: they are counted and saved once.

    The source of a subclass is copied into the ``load.py`` of an artifact: its body may use ``torch``, ``math``,
    ``warnings``, ``Any``, ``ClassVar`` and ``Mapping``, and nothing else from outside.
    """

    method: ClassVar[str]  # its name in ``quantization_config.json``
    in_place: ClassVar[bool] = False  # the kernel reads the tensors as they are: they must be aligned, not in a file

    def saved(self) -> dict[str, torch.Tensor]:
        """What goes into safetensors, by names that begin with no layer's name."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """What :meth:`rebuilt` needs besides, as JSON data."""
        return {}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> PackedLayer:
        """The layer whose ``saved()`` and ``settings()`` these are; tensors are taken as they are, never copied."""
        raise NotImplementedError

    def parameter_count(self) -> int:
        """Weights and biases that this layer stands for."""
        raise NotImplementedError

    def hidden_bytes(self) -> int:
        """Bytes of codes, scales and bias that lie inside a kernel's own object, where no buffer shows them."""
        return 0

    def packed_bytes(self) -> int:
        """Bytes of codes, scales and bias (a kernel's own padding and row sums are not counted)."""
        shown = sum(int(buffer.untyped_storage().nbytes()) for buffer in self.buffers(recurse=False))
        return self.hidden_bytes() + shown

    def engine(self) -> str:
        """Which kernel multiplies, in a word."""
        return "torch"
