"""Which layers stay wide so that a quantized artifact keeps a measured floor of quality.

Layers are ranked by how much each alone moves the answers (``parts/layer_sensitivity.py``); the fewest of the most
sensitive ones are found, by a search over real artifacts, with which the loss on calibration rows is at most
``max_drop``. The search begins where the sensitivities say and then closes in; it takes for granted that a further
wide layer does not make the answers worse. The rows that quality is judged on later are never looked at.
"""

from __future__ import annotations

import copy
import glob
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from experiments.parts.calibration_score import (
    ROWS,
    WINDOWS,
    CalibrationScore,
    Forward,
    calibration_rows,
)
from experiments.parts.layer_sensitivity import Sensitivities, sensitivities
from experiments.parts.summaries import first_clause
from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind, LayerSensitivity, StepEffect

if TYPE_CHECKING:
    from experiments.parts.quantizer import Quantizer

#: What is built: a torch module, or the path of a graph.
Built = TypeVar("Built")


def quantized_module(quantizer: Quantizer, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
    """``module`` quantized by ``quantizer`` with as few wide layers as its ``max_drop`` needs.

    Raises:
        ExperimentError: ``no_effect`` if the floor does not hold even with one narrow layer; ``bad_dataset`` if there
            are no calibration rows; whatever the quantizer raises.
    """
    from experiments.parts.torch_session import TorchSession

    def forward(built: Any) -> Forward:
        return TorchSession(built, context.task, "cpu", 0).forward

    def build(keep: tuple[str, ...], number: int) -> tuple[Any, StepEffect]:
        return quantizer.quantize_torch(copy.deepcopy(module), keep, replace(context, progress=_silent))

    search = _Search(quantizer, context, forward, build, discard=lambda built: None)
    ranked = sensitivities(quantizer, lambda: module, context)
    return search.run(forward(module), ranked, ranked.divergences)


def quantized_graph(quantizer: Quantizer, source: Path, target: Path, context: BuildContext) -> StepEffect:
    """The graph ``source`` quantized into ``target`` with as few wide layers as ``max_drop`` needs.

    Sensitivities are measured on the torch module that the graph was exported from.

    Raises:
        ExperimentError: as :func:`quantized_module`; ``unsupported`` if the module is not at hand.
    """
    if context.module is None:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            "max_drop needs the torch module that this graph was exported from, and there is none",
            fix="Name the layers to keep wide with keep instead.",
            field="recipe.max_drop",
        )

    def forward(built: Path) -> Forward:
        judged: Forward = _graph_session(built, source, context).forward
        return judged

    def build(keep: tuple[str, ...], number: int) -> tuple[Path, StepEffect]:
        # A quantizer may leave scratch files under fixed names in its work folder: each try gets its own.
        tried = context.work / f"floor-{number}"
        (tried / "files").mkdir(parents=True)
        inner = replace(context, work=tried, progress=_silent)
        effect = quantizer.quantize_onnx(source, tried / "files" / target.name, keep, inner)
        for left in (path for path in tried.iterdir() if path.name != "files"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        return tried / "files" / target.name, effect

    search = _Search(quantizer, context, forward, build, discard=lambda built: shutil.rmtree(built.parents[1]))
    ranked = sensitivities(quantizer, context.module, context)
    built, effect = search.run(forward(source), ranked, _layers(source))
    for path in built.parent.iterdir():
        shutil.move(path, target.parent / path.name)
    return effect


def next_try(losses: Mapping[int, float], floor: float, most: int, guess: int) -> int | None:
    """How many layers to keep wide in the next artifact; None if the fewest that hold the floor are known, or none do.

    Args:
        losses: wide layers -> loss of what was tried so far; 0 is always among them.
        floor: largest loss that is allowed.
        most: wide layers at most.
        guess: where to begin.
    """
    holding = [wide for wide, loss in losses.items() if loss <= floor]
    best = min(holding, default=None)
    failing = max((wide for wide in losses if best is None or wide < best), default=-1)
    if best is None:
        if failing >= most:
            return None
        # Away from the guess in growing steps, as long as nothing holds.
        return min(most, max(1, guess) if not failing else failing + 2 ** (len(losses) - 2))
    if best - 1 <= failing:
        return None
    return (failing + best) // 2 if failing else max(1, best - 2 ** (len(holding) - 1))


def _silent(fraction: float, message: str = "", seconds_left: float | None = None) -> None:
    """One of several artifacts that are tried: the search says how far it is."""


def _layers(graph: Path) -> set[str]:
    """Names of the linear layers that the graph has."""
    from experiments.parts.onnx_graph import layer_name, linear_nodes, load_graph, name_nodes

    model = load_graph(graph, weights=False)
    name_nodes(model)
    return {layer_name(node) for node in linear_nodes(model)[0]}


def _graph_session(graph: Path, source: Path, context: BuildContext) -> Any:
    from experiments.parts.artifact_card import ArtifactCard, read_config
    from experiments.parts.onnx_session import OnnxSession

    config = read_config(source.parent)
    architecture = str((config.get("architectures") or ["unknown"])[0])
    card = ArtifactCard(form="onnx", task=context.task, architecture=architecture, weights_bytes=0)
    return OnnxSession(graph, card, config, "cpu", context.threads)


@dataclass(frozen=True)
class _Try(Generic[Built]):
    """One real artifact: how many of the most sensitive layers were kept wide, and what that lost."""

    wide: int
    built: Built
    effect: StepEffect
    loss: float


@dataclass
class _Search(Generic[Built]):
    """Builds artifacts and judges them until the smallest number of wide layers is known."""

    quantizer: Quantizer
    context: BuildContext
    forward: Callable[[Built], Forward]
    build: Callable[[tuple[str, ...], int], tuple[Built, StepEffect]]
    discard: Callable[[Built], None]

    def run(self, unchanged: Forward, ranked: Sensitivities, known: Collection[str]) -> tuple[Built, StepEffect]:
        """The artifact with the fewest wide layers that holds the floor, and its effect.

        ``known``: the layers that can be named to the quantizer; others of ``ranked`` are left out of the choice.
        """
        floor = self.quantizer.max_drop
        assert floor is not None, "the caller asks only for quantizers with a floor"
        limit = WINDOWS if self.context.task == "text-generation" else ROWS
        self._score = CalibrationScore(calibration_rows(self.context, limit), self.context.task)
        self._before = self._score.judge(unchanged)
        self._started = time.monotonic()
        self._losses: dict[int, float] = {}  # layers kept wide -> loss
        best = self._tried([], 0)
        movable = [name for name in ranked.divergences if name in known and name not in best.effect.kept]
        most = len(movable) - 1  # with all of them wide there would be nothing left to quantize
        guess = self._guess(ranked, movable, best.loss) if best.loss > floor else 0
        while (wide := next_try(self._losses, floor, most, guess)) is not None:
            done = self._tried(movable[:wide], left=most.bit_length() // 2)
            worse, best = (best, done) if done.loss <= floor or best.loss > floor else (done, best)
            self.discard(worse.built)
        if best.loss > floor:
            raise self._impossible(floor, len(movable))
        return best.built, self._effect(best, ranked, movable, known)

    def _guess(self, ranked: Sensitivities, movable: list[str], loss: float) -> int:
        """How many layers would have to stay wide if what each loses alone added up to ``loss``; at least 1."""
        assert self.quantizer.max_drop is not None
        total = left = sum(ranked.divergences[name] for name in movable)
        for number, name in enumerate(movable[:-1]):
            if number and left <= total * self.quantizer.max_drop / loss:
                return number
            left -= ranked.divergences[name]
        return max(1, len(movable) - 1)

    def _tried(self, wide: list[str], left: int) -> _Try[Built]:
        keep = (*self.quantizer.keep, *(glob.escape(name) for name in wide))
        built, effect = self.build(keep, len(self._losses))
        loss = self._score.loss(self._before, self._score.judge(self.forward(built)))
        self._losses[len(wide)] = loss
        tries = len(self._losses)
        message = f"{len(wide)} layers kept wide: {self._score.unit} loses {loss:.4g}"
        self.context.log(message)
        pace = (time.monotonic() - self._started) / tries
        self.context.progress(0.5 + 0.5 * tries / (tries + left), message, pace * left)
        return _Try(wide=len(wide), built=built, effect=effect, loss=loss)

    def _impossible(self, floor: float, movable: int) -> ExperimentError:
        most = max(self._losses)
        return ExperimentError(
            FailureKind.NO_EFFECT,
            f"{self.quantizer.technique} can't hold max_drop {floor:g}: with {most} of {movable} layers kept wide, "
            f"{self._score.unit} still loses {self._losses[most]:.4g} on {self._score.where} (with none kept, "
            f"{self._losses[0]:.4g}; least seen, {min(self._losses.values()):.4g})",
            fix="Raise max_drop, or choose a technique that keeps activations wide, such as int8-weight-only.",
            field="recipe.max_drop",
            losses={str(wide): loss for wide, loss in sorted(self._losses.items())},
        )

    def _effect(
        self, best: _Try[Built], ranked: Sensitivities, movable: list[str], known: Collection[str]
    ) -> StepEffect:
        floor, chosen = self.quantizer.max_drop, set(movable[: best.wide])
        kept = {
            name: f"alone it moves the answers by {ranked.divergences[name]:.3g} ({ranked.measure}); wide for max_drop"
            if name in chosen
            else reason
            for name, reason in best.effect.kept.items()
        }
        sensitivity = tuple(
            LayerSensitivity(layer=name, divergence=divergence, kept=name in kept or name not in known)
            for name, divergence in ranked.divergences.items()
        )
        head, rest = first_clause(best.effect.summary)
        found = (
            f"max_drop {floor:g} held on {self._score.where}: {self._score.unit} loses {best.loss:.3g} with "
            + (f"the {best.wide} most sensitive of {len(movable)} layers" if best.wide else "none of the layers")
            + " kept wide for it"
            + (f" (with none, {self._losses[0]:.3g})" if best.wide else "")
        )
        counted = f"{best.effect.changed} of {best.effect.of} linear layers quantized" if best.wide else head
        return best.effect.model_copy(
            update={
                "summary": "; ".join(part for part in (counted, found, rest) if part),
                "kept": kept,
                "sensitivity": sensitivity,
                "sensitivity_measure": ranked.measure,
            }
        )
