"""How much each linear layer alone, made narrow, moves a model's answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.parts.calibration_score import BATCH, calibration_rows, rows_in_words
from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch

    from experiments.parts.encoded_rows import EncodedRows
    from experiments.parts.quantizer import Quantizer

#: Rows that sensitivities are measured on (one forward pass a layer), and for running text one window.
ROWS, WINDOWS, WINDOW = 32, 1, 192


@dataclass(frozen=True)
class Sensitivities:
    """Layer name -> divergence of the answers when that layer alone is narrow, most sensitive first."""

    divergences: dict[str, float]
    measure: str


def sensitivities(quantizer: Quantizer, load: Callable[[], Any], context: BuildContext) -> Sensitivities:
    """Replace each linear layer of a module by ``quantizer.simulated`` in turn and compare the answers.

    KL(unchanged || one layer narrow) in nats, mean over rows or tokens, for logits; 1 - mean cosine of the
    embeddings for features. Kept for all settings of ``keep`` and ``max_drop``. ``load`` gives the module; it is called
    only if they were not measured before, and the module is left as it was.

    Raises:
        ExperimentError: ``bad_dataset`` if there are no calibration rows; ``unsupported`` if there is no linear layer.
    """

    def make(folder: Path) -> None:
        measured = _measured(quantizer, load(), context)
        (folder / "sensitivities.json").write_text(
            json.dumps({"measure": measured.measure, "divergences": measured.divergences})
        )

    key = {
        "quantizer": quantizer.model_dump(mode="json", exclude={"keep", "max_drop"}),
        "rows": [ROWS, WINDOWS, WINDOW],
        "version": 1,
    }
    saved = json.loads((context.remember("sensitivities", key, make) / "sensitivities.json").read_text())
    ordered = sorted(saved["divergences"].items(), key=lambda item: -item[1])
    return Sensitivities(divergences=dict(ordered), measure=saved["measure"])


def _measured(quantizer: Quantizer, module: Any, context: BuildContext) -> Sensitivities:
    import torch

    from experiments.parts.linear_layers import linear_layers, swap

    module = module.eval()
    rows = calibration_rows(context, WINDOWS if context.task == "text-generation" else ROWS, WINDOW)
    passes = _Passes(module, rows, context)
    layers, _ = linear_layers(module)
    if not layers:
        raise ExperimentError(FailureKind.UNSUPPORTED, "the model has no linear layer whose sensitivity could be told")
    divergences: dict[str, float] = {}
    started = time.monotonic()
    with torch.no_grad():
        passes.record()
        for number, layer in enumerate(layers):
            swap(module, layer.name, quantizer.simulated(layer, context).eval())
            try:
                divergences[layer.name] = passes.divergence(layer.name)
            finally:
                swap(module, layer.name, layer.module)
            left = (time.monotonic() - started) / (number + 1) * (len(layers) - number - 1)
            context.progress(
                0.5 * (number + 1) / len(layers),
                f"sensitivity of layer {number + 1:,} of {len(layers):,}, about {left:.0f} s left",
                left,
            )
    return Sensitivities(divergences, f"{passes.measure}, {rows_in_words(rows)}")


class _Passes:
    """Forward passes over the rows: the unchanged one, and those with one layer changed.

    Blocks before the changed layer give what they gave in the unchanged pass, so they are not computed again.
    """

    def __init__(self, module: Any, rows: EncodedRows, context: BuildContext) -> None:
        from experiments.parts.torch_session import TorchSession

        self._session = TorchSession(module, context.task, "cpu", 0)
        self._batches = [rows.batch(batch) for batch in rows.in_order(1 if rows.windows else BATCH)]
        self._features = context.task == "feature-extraction"
        self._blocks = dict(_blocks(module))
        self._outputs: list[dict[str, Any]] = []
        self._before: list[torch.Tensor] = []
        self.measure = "1 - mean cosine" if self._features else "KL divergence in nats"

    def record(self) -> None:
        """The unchanged pass: answers, and what every block gave."""
        for batch in self._batches:
            seen: list[str] = []
            outputs: dict[str, Any] = {}
            handles = [
                block.register_forward_hook(_keep_output(name, seen, outputs)) for name, block in self._blocks.items()
            ]
            try:
                self._before.append(self._answers(batch))
            finally:
                for handle in handles:
                    handle.remove()
            # A block that is called twice, or out of order, can't be stood in for by one output.
            self._outputs.append(outputs if seen == list(self._blocks) else {})

    def divergence(self, layer: str) -> float:
        """Mean divergence over all rows or tokens with ``layer`` changed; infinite where answers are not finite."""
        total, count = 0.0, 0
        for batch, outputs, before in zip(self._batches, self._outputs, self._before, strict=True):
            with self._skipping(layer, outputs):
                after = self._answers(batch)
            total += float(self._distances(before, after).sum())
            count += len(before)
        mean = total / count
        return max(mean, 0.0) if mean < float("inf") else 1e30

    def _answers(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """(N, classes) log-probabilities of every row or token, or (N, width) embeddings."""
        import torch

        from experiments.parts.pooling import pooled

        output = self._session.forward(batch)
        if self._features:
            return torch.from_numpy(pooled(output, batch["attention_mask"]))
        logits = torch.from_numpy(output)
        return torch.log_softmax(logits.reshape(-1, logits.shape[-1]), dim=-1)

    def _distances(self, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        import torch

        if self._features:
            return 1 - torch.nn.functional.cosine_similarity(before.double(), after.double(), dim=-1)
        # Float32 is exact enough for a ranking; the reports of quality compute theirs in float64.
        return torch.nn.functional.kl_div(after, before, reduction="none", log_target=True).sum(dim=-1).double()

    @contextmanager
    def _skipping(self, layer: str, outputs: Mapping[str, Any]) -> Iterator[None]:
        names = list(self._blocks)
        inside = next((n for n, name in enumerate(names) if layer.startswith(f"{name}.")), None)
        skipped = names[:inside] if inside is not None and outputs else []
        try:
            for name in skipped:
                self._blocks[name].forward = _recorded(outputs[name])
            yield
        finally:
            for name in skipped:
                del self._blocks[name].forward


def _blocks(module: Any) -> list[tuple[str, Any]]:
    """The repeated blocks: members of the outermost list of modules that holds the most parameters."""
    import torch

    lists = [(name, child) for name, child in module.named_modules() if isinstance(child, torch.nn.ModuleList)]
    if not lists:
        return []
    name, largest = max(lists, key=lambda item: sum(p.numel() for p in item[1].parameters()))
    return [(f"{name}.{index}", block) for index, block in enumerate(largest)]


def _keep_output(name: str, seen: list[str], outputs: dict[str, Any]) -> Any:
    def hook(block: Any, args: Any, output: Any) -> None:
        seen.append(name)
        outputs[name] = output

    return hook


def _recorded(output: Any) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return output

    return forward
