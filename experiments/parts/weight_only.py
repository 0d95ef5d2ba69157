"""What weight-only quantizers share, whatever runs the result: the settings, and how one matrix becomes codes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from experiments.parts.block_codes import BlockCodes, Grid

if TYPE_CHECKING:
    import torch

    from experiments.parts.calibration import LayerInputs

Method = Literal["rtn", "hqq", "gptq", "awq"]
Head = Literal["own-codes", "shared-codes", "float"]
METHODS: dict[Method, str] = {
    "rtn": "rounded to nearest",
    "hqq": "grids fitted by HQQ",
    "gptq": "compensated by GPTQ",
    "awq": "scaled by AWQ",
}


@dataclass(frozen=True)
class WeightOnly:
    """How weights become codes.

    Attributes:
        head: what becomes of an output head that shares its tensor with the input embedding.
        accuracy_level: of ONNX Runtime's MatMulNBits.
        samples: calibration rows or windows of GPTQ and AWQ.
    """

    technique: str
    grid: Grid
    method: Method = "rtn"
    head: Head = "own-codes"
    accuracy_level: int = 4
    damping: float = 0.01
    act_order: bool = False
    samples: int = 128

    @property
    def calibrates(self) -> bool:
        """True if it looks at what the layers are fed."""
        return self.method in ("gptq", "awq")


@dataclass
class Coder:
    """Makes codes of one matrix after the other and remembers what must be told of them.

    Attributes:
        statistics: layer name -> what it is fed; empty if the method needs none.
        fallbacks: layer name -> why it was rounded to nearest although GPTQ or AWQ was asked for.
    """

    how: WeightOnly
    statistics: Mapping[str, LayerInputs]
    fallbacks: dict[str, str] = field(default_factory=dict)
    damped: dict[str, float] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    on_grid: int = 0
    seen: int = 0

    def codes(self, layer: str, weight: torch.Tensor, *, plainly: bool = False) -> BlockCodes:
        """Codes of ``weight`` (out, in); ``plainly``: without regard to what the layer is fed."""
        from experiments.parts.block_codes import round_to_nearest, values_per_block
        from experiments.parts.gptq import compensated
        from experiments.parts.hqq import half_quadratic

        grid = self.how.grid
        self.seen += 1
        self.on_grid += grid.bits == 4 and values_per_block(weight, _GRID_BLOCK) <= 2**grid.bits
        if self.how.method == "hqq":
            return half_quadratic(weight, grid)
        if plainly and self.how.calibrates:
            self.fallbacks[layer] = "the embedding reads the same codes, and calibration knows the head's inputs only"
        if self.how.method != "gptq" or plainly:
            return round_to_nearest(weight, grid)
        inputs = self.inputs(layer)
        if inputs is None:
            return round_to_nearest(weight, grid)
        made = compensated(weight, inputs.moment, grid, damping=self.how.damping, act_order=self.how.act_order)
        if made.fallback:
            self.fallbacks[layer] = made.fallback
        if made.damping is not None and made.damping > self.how.damping:
            self.damped[layer] = made.damping
        if made.dead:
            self.dead[layer] = made.dead
        return made.codes

    def inputs(self, layer: str) -> LayerInputs | None:
        """What ``layer`` is fed; None, and noted, if no calibration row came to it."""
        found = self.statistics.get(layer)
        if found is None:
            self.fallbacks[layer] = "no calibration row came to it"
        return found

    def in_words(self) -> str:
        """E.g. 'compensated by GPTQ (damping 0.01; 2 layers rounded to nearest)'."""
        words = METHODS[self.how.method]
        notes = []
        if self.how.method == "gptq":
            notes.append(
                f"damping {self.how.damping:g}" + (f", more in {len(self.damped)} layers" if self.damped else "")
            )
            if self.dead:
                notes.append(f"{sum(self.dead.values())} dead input channels in {len(self.dead)} layers")
        if self.fallbacks:
            notes.append(f"{_layers(self.fallbacks)} rounded to nearest instead")
        return f"{words} ({'; '.join(notes)})" if notes else words

    def warnings(self) -> tuple[str, ...]:
        """What a reader of the result must know: fall-backs by layer, damping that was raised, weights on a grid."""
        told = []
        for layer, why in list(self.fallbacks.items())[:8]:
            told.append(f"{layer} was rounded to nearest: {why}")
        if len(self.fallbacks) > 8:
            told.append(f"{len(self.fallbacks) - 8} more layers were rounded to nearest")
        if self.damped:
            layer, most = max(self.damped.items(), key=lambda item: item[1])
            told.append(
                f"the Hessian of {_layers(self.damped)} needed more damping than {self.how.damping:g}, most {layer}: "
                f"{most:g} of its mean diagonal; more calibration rows would help"
            )
        if self.seen and self.on_grid > self.seen / 2:
            told.append(
                f"the weights already lie on a 4-bit grid: at most 16 different values in each block of {_GRID_BLOCK}, "
                f"in {self.on_grid} of {self.seen} layers; what 4 bits lose here says little about models that were "
                "never quantized"
            )
        return tuple(told)


#: The block that common 4-bit files use; where those were widened again, at most 16 values are left in each.
_GRID_BLOCK = 32


def _layers(names: Collection[str]) -> str:
    return f"{len(names)} layer{'s' if len(names) != 1 else ''}"
