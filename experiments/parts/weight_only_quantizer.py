"""What the weight-only techniques do alike: only their settings differ."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.parts.quantizer import Quantizer
from experiments.parts.weight_only_checks import refuse_weight_only, valid_groups
from experiments.protocols import Ask, BuildContext, ModelFacts
from experiments.records import Label, StepEffect

if TYPE_CHECKING:
    from experiments.parts.weight_only import WeightOnly


class WeightOnlyQuantizer(Quantizer):
    """Stores weights as codes and widens them for each product. A subclass has the settings (:meth:`how`)."""

    forms = frozenset({"torch", "onnx"})
    label = Label.WEIGHT_ONLY

    @abstractmethod
    def how(self) -> WeightOnly:
        """The settings, as both forms take them."""

    def refuse(self, ask: Ask) -> str | None:
        """Quantized models, groups that PyTorch's kernels can't take, CUDA without a kernel that was tried."""
        return refuse_weight_only(ask, self.how()) or super().refuse(ask)

    def valid(self, facts: ModelFacts) -> dict[str, Any]:
        """Group sizes that divide the model's width."""
        return {"group_size": valid_groups(facts, (16, 32, 64, 128, 256))}

    def quantize_torch(self, module: Any, keep: tuple[str, ...], context: BuildContext) -> tuple[Any, StepEffect]:
        """Swap the linear layers. Raises as ``parts.weight_only_torch.quantize_module`` does."""
        from experiments.parts.weight_only_torch import quantize_module

        return quantize_module(module, self.how(), keep, context)

    def quantize_onnx(self, source: Path, target: Path, keep: tuple[str, ...], context: BuildContext) -> StepEffect:
        """Quantize the graph. Raises as ``parts.nbits_graph.quantize_graph`` does."""
        from experiments.parts.nbits_graph import quantize_graph

        return quantize_graph(source, target, self.how(), keep, context)

    def simulated(self, layer: Any, context: BuildContext) -> Any:
        """Weights rounded to nearest in float32. See ``Quantizer.simulated``."""
        from experiments.parts.weight_rounding import BlockRoundedLinear

        return BlockRoundedLinear(layer, self.how().grid)
