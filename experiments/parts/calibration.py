"""What the linear layers of a model are fed on calibration rows: second moments and magnitudes of their inputs.

Collected once for a state of a model and kept (``BuildContext.remember``, kind "hessians"): GPTQ, AWQ, SparseGPT and
Wanda all read the same statistics. They are those of the model as it stands before the step: layers that are quantized
or pruned earlier in the same step do not change what later ones are calibrated on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch

#: Second moments that are held at once; a model with more of them is run several times, some layers each.
MOMENTS_BYTES = 2 << 30
#: Tokens that go through the model at once.
BATCH_TOKENS = 2048


@dataclass(frozen=True)
class LayerInputs:
    """What one linear layer was fed, padding excluded. All float32.

    Attributes:
        moment: (in, in), the uncentred second moment X^T X / n; GPTQ's and SparseGPT's Hessian is twice this.
        mean_abs: (in,), mean |x| of each input channel.
        norm: (in,), L2 norm of each input channel over all n tokens.
        largest: (in,), max |x| of each input channel.
        tokens: n, rows of X.
        source: name of the first layer that was fed the very same tensor (itself, if it is the first).
    """

    moment: torch.Tensor
    mean_abs: torch.Tensor
    norm: torch.Tensor
    largest: torch.Tensor
    tokens: int
    source: str


class Statistics(Mapping[str, LayerInputs]):
    """Layer name -> :class:`LayerInputs`, read from disk when asked for. Layers that were never called are absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index: dict[str, dict[str, Any]] = json.loads((folder / "index.json").read_text())

    def __getitem__(self, layer: str) -> LayerInputs:
        from safetensors import safe_open

        entry = self._index[layer]
        with safe_open(self._folder / entry["file"], "pt") as file:
            found = {part: file.get_tensor(f"{entry['source']}.{part}") for part in ("moment", "mean_abs", "largest")}
        norm = (found["moment"].diagonal() * entry["tokens"]).sqrt()
        return LayerInputs(**found, norm=norm, tokens=entry["tokens"], source=entry["source"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def groups(self) -> dict[str, list[str]]:
        """Source -> all layers that were fed the same tensor, in the order in which they were called."""
        groups: dict[str, list[str]] = {}
        for layer, entry in self._index.items():
            groups.setdefault(entry["source"], []).append(layer)
        return groups


def input_statistics(
    module: Any, context: BuildContext, *, samples: int = 128, length: int | None = None
) -> Statistics:
    """Run ``module`` over calibration rows and keep what its linear layers (``parts.linear_layers``) are fed.

    Args:
        samples: rows, or for text generation windows of running text, at most.
        length: tokens of a row or window at most; default is the workload's sequence length.

    Raises:
        ExperimentError: ``bad_dataset`` if there are no calibration rows, ``canary`` if an input is not finite.
    """
    key = {"samples": samples, "length": length or context.sequence_length, "format": 1}

    def make(folder: Path) -> None:
        _collect(module, context, samples, length, folder)

    return Statistics(context.remember("hessians", key, make))


def calibration_batches(
    context: BuildContext, samples: int, length: int | None = None
) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of the model's inputs from the calibration rows: ``samples`` at most, evenly spread over them."""
    import torch

    from experiments.parts.encoded_rows import encode_rows

    # Running text is cut into windows, and it may take several rows to fill one.
    rows = context.rows("calibration", samples * 8 if context.task == "text-generation" else samples)
    encoded = encode_rows(rows, context, length=length)
    chosen = set(np.linspace(0, len(encoded) - 1, min(samples, len(encoded))).round().astype(int).tolist())
    longest = length or context.sequence_length
    size = max(1, BATCH_TOKENS // longest)
    order = [row for several in encoded.in_order(size) for row in several if row in chosen]  # shortest rows first
    for start in range(0, len(order), size):
        batch = encoded.batch(order[start : start + size])
        yield {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in batch.items()}


class _Enough(Exception):
    """All layers that are watched in this run have been called."""


def _collect(module: Any, context: BuildContext, samples: int, length: int | None, folder: Path) -> None:
    batches = list(calibration_batches(context, samples, length))
    order = _called(module, context, batches[0])
    index: dict[str, dict[str, Any]] = {}
    runs = list(_runs(order))
    for number, sources in enumerate(runs):
        watch = _Watch(sources)
        for position, batch in enumerate(batches):
            _run(module, context, batch, partial(watch, mask=batch.get("attention_mask")))
            done = (number + (position + 1) / len(batches)) / len(runs)
            context.progress(0.5 * done, f"calibration: batch {position + 1} of {len(batches)}")
        name = f"inputs-{number}.safetensors"
        watch.save(folder / name)
        for layer, (source, _) in order.items():
            if source in sources:
                index[layer] = {"file": name, "source": source, "tokens": watch.tokens[source]}
    (folder / "index.json").write_text(json.dumps(index))


def _called(module: Any, context: BuildContext, batch: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Layer -> (first layer that was fed the same tensor, input width), in the order of calls."""
    order: dict[str, tuple[str, int]] = {}
    held: list[tuple[str, Any]] = []  # keeps the tensors alive, so that identity means something

    def see(name: str, x: Any) -> None:
        source = next((first for first, other in held if other is x), name)
        if source == name:
            held.append((name, x))
        order.setdefault(name, (source, int(x.shape[-1])))

    _run(module, context, batch, see)
    return order


def _runs(order: Mapping[str, tuple[str, int]]) -> Iterator[dict[str, int]]:
    """Source -> width, in groups whose moments fit in :data:`MOMENTS_BYTES` together."""
    group: dict[str, int] = {}
    for layer, (source, width) in order.items():
        if layer != source:
            continue
        if group and sum(4 * w * w for w in (*group.values(), width)) > MOMENTS_BYTES:
            yield group
            group = {}
        group[source] = width
    if group:
        yield group


class _Watch:
    """Sums up the inputs of some layers."""

    def __init__(self, sources: Mapping[str, int]) -> None:
        import torch

        self.tokens = dict.fromkeys(sources, 0)
        self._moment = {name: torch.zeros(width, width) for name, width in sources.items()}
        self._sum = {name: torch.zeros(width, dtype=torch.float64) for name, width in sources.items()}
        self._largest = {name: torch.zeros(width) for name, width in sources.items()}
        self._last = list(sources)[-1]

    def __call__(self, name: str, fed: torch.Tensor, mask: torch.Tensor | None) -> None:
        if name not in self.tokens:
            return
        x = _tokens(fed, mask)
        if not bool(x.isfinite().all()):
            raise ExperimentError(
                FailureKind.CANARY,
                f"an input of {name} is not finite on the calibration rows",
                fix="The model itself overflows on this data; look at its float32 run first.",
            )
        self._moment[name].addmm_(x.t(), x)
        size = x.abs()
        self._sum[name] += size.sum(dim=0, dtype=self._sum[name].dtype)
        self._largest[name].copy_(self._largest[name].maximum(size.amax(dim=0)))
        self.tokens[name] += len(x)
        if name == self._last:
            raise _Enough

    def save(self, path: Path) -> None:
        """Write all statistics to a safetensors file."""
        from safetensors.torch import save_file

        tensors = {}
        for name, n in self.tokens.items():
            tensors[f"{name}.moment"] = self._moment[name].div_(n)
            tensors[f"{name}.mean_abs"] = (self._sum[name] / n).float()
            tensors[f"{name}.largest"] = self._largest[name]
        save_file(tensors, path)


def _run(
    module: Any, context: BuildContext, batch: Mapping[str, Any], see: Callable[[str, torch.Tensor], None]
) -> None:
    """Run ``module`` and call ``see(layer name, input)`` for every linear layer, until it has seen enough."""
    import torch

    from experiments.parts.linear_layers import linear_layers

    def hook(name: str) -> Any:
        def before(layer: Any, arguments: Any) -> None:
            see(name, arguments[0])

        return before

    handles = [layer.module.register_forward_pre_hook(hook(layer.name)) for layer in linear_layers(module)[0]]
    no_cache = {"use_cache": False} if context.task == "text-generation" else {}
    try:
        with torch.inference_mode():
            module.eval()(**batch, **no_cache)
    except _Enough:
        return
    finally:
        for handle in handles:
            handle.remove()


def _tokens(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """(tokens, in) in float32: all rows of ``x`` but those that stand for padding."""
    rows = x.reshape(-1, x.shape[-1])
    if mask is not None and (x.shape[:-1] == mask.shape or len(rows) == mask.numel() > len(mask)):
        rows = rows[mask.reshape(-1).bool()]
    return rows.float()
