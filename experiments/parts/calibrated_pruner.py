"""What pruners share that look at what the layers are fed on calibration rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from experiments.parts.mask_pruner import MaskPruner
from experiments.protocols import BuildContext, Use

if TYPE_CHECKING:
    from experiments.parts.calibration import LayerInputs
    from experiments.parts.linear_layers import LinearLayer


class CalibratedPruner(MaskPruner):
    """A mask pruner that needs calibration rows. The statistics are those of the model before this step."""

    samples: int = Field(
        default=128, ge=1, le=10_000, description="Calibration rows, or windows of running text, at most."
    )

    shared: ClassVar[bool] = True

    def needs(self) -> frozenset[Use]:
        """Calibration rows."""
        return frozenset({"calibration"})

    def statistics(self, module: Any, context: BuildContext) -> Mapping[str, LayerInputs]:
        """Layer name -> its inputs over the calibration rows. Raises as ``parts.calibration.input_statistics``."""
        from experiments.parts.calibration import input_statistics

        return input_statistics(module, context, samples=self.samples)


def never_fed(layers: list[LinearLayer], statistics: Mapping[str, LayerInputs]) -> tuple[str, ...]:
    """A warning that names the layers that no calibration row reached, or nothing."""
    missed = [layer.name for layer in layers if layer.name not in statistics]
    if not missed:
        return ()
    return (f"no calibration row reached {names_in_words(missed)}: pruned by magnitude",)


def names_in_words(names: list[str]) -> str:
    """E.g. 'layers.0.up_proj, layers.1.up_proj, layers.2.up_proj and 4 more layers'."""
    more = f" and {len(names) - 3} more layers" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
