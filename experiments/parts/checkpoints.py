"""Checkpoints of a training: weights, optimizer and chance as safetensors, losses as JSON; whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from experiments.parts.training import Plan

#: Seconds between two checkpoints, at least; saving takes at most a tenth of the time.
EVERY_SECONDS = 20.0
_TENSORS, _STATE = "state.safetensors", "state.json"


@dataclass(frozen=True)
class State:
    """A training after ``len(losses)`` steps.

    ``tensors``: what is trained and the buffers (``module.<name>``), the optimizer's (``optimizer.<index>.<name>``),
    and the generators' states (``chance.cpu``, ``chance.cuda<n>``).
    """

    tensors: dict[str, torch.Tensor]
    losses: tuple[float, ...]

    @classmethod
    def of(cls, module: torch.nn.Module, optimizer: Any, losses: Sequence[float], devices: Sequence[int]) -> State:
        """The state as it is now; nothing is copied."""
        import torch

        tensors = {f"module.{name}": tensor for name, tensor in _own(module).items()}
        for index, entries in optimizer.state_dict()["state"].items():
            for name, value in entries.items():
                tensors[f"optimizer.{index}.{name}"] = value
        tensors["chance.cpu"] = torch.get_rng_state()
        for device in devices:
            tensors[f"chance.cuda{device}"] = torch.cuda.get_rng_state(device)
        return cls(tensors, tuple(losses))

    def restore(self, module: torch.nn.Module, optimizer: Any) -> None:
        """Put everything back where it came from.

        Raises:
            KeyError: the module has a tensor that this state lacks.
        """
        import torch

        with torch.no_grad():
            for name, tensor in _own(module).items():
                tensor.copy_(self.tensors[f"module.{name}"])
        entries: dict[int, dict[str, Any]] = {}
        for name, tensor in self.tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                index, _, part = rest.partition(".")
                entries.setdefault(int(index), {})[part] = tensor
            elif kind == "chance" and rest.startswith("cuda"):
                torch.cuda.set_rng_state(tensor, int(rest.removeprefix("cuda")))
        optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})
        torch.set_rng_state(self.tensors["chance.cpu"])


def _own(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What training changes: trained parameters and buffers, without the gradients' bookkeeping."""
    named = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    return named | {name: b for name, b in module.named_buffers() if hasattr(b, "untyped_storage")}


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU, copied only where they share a storage: safetensors takes none that do."""
    ready: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.nbytes() != plain.numel() * plain.element_size() or storage.data_ptr() in seen:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        ready[name] = plain
    return ready


@dataclass
class Checkpoints:
    """The checkpoints of one training below ``folder``; only the latest one is kept.

    Attributes:
        every_seconds: time between two of them, at least.
        at_end: keep the finished training too, so that it is not done again where others follow it.
    """

    folder: Path
    every_seconds: float = EVERY_SECONDS
    at_end: bool = False
    _saved: float = field(default_factory=time.monotonic)
    _cost: float = 0.0

    def due(self, step: int, steps: int) -> bool:
        """Whether to save after ``step``."""
        if step == steps:
            return self.at_end
        return time.monotonic() - self._saved >= max(self.every_seconds, 10 * self._cost)

    def save(self, state: State) -> None:
        """Write ``state`` beside the one before it, then let that one go."""
        from safetensors.torch import save_file

        started = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"step-{len(state.losses):08d}"
        scratch = self.folder / f".{target.name}.{os.getpid()}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        save_file(_apart(state.tensors), scratch / _TENSORS)
        (scratch / _STATE).write_text(json.dumps({"losses": state.losses}))
        for name in (_TENSORS, _STATE):
            with (scratch / name).open("rb") as handle:
                os.fsync(handle.fileno())
        os.rename(scratch, target)
        for other in self.folder.iterdir():
            if other != target and other.name.lstrip(".").startswith("step-"):
                shutil.rmtree(other, ignore_errors=True)
        self._saved = time.monotonic()
        self._cost = self._saved - started

    def last(self, plan: Plan) -> State | None:
        """The latest state of a training by ``plan``, or None if there is none; another plan's is not gone on from."""
        from safetensors.torch import load_file

        self.folder.mkdir(parents=True, exist_ok=True)
        note = self.folder / "plan.json"
        asked = json.loads(json.dumps(asdict(plan)))
        if not note.is_file() or json.loads(note.read_text()) != asked:
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            scratch = self.folder / ".plan.json"
            scratch.write_text(json.dumps(asked))
            os.replace(scratch, note)
            return None
        found = sorted(path for path in self.folder.iterdir() if path.name.startswith("step-"))
        if not found:
            return None
        losses = json.loads((found[-1] / _STATE).read_text())["losses"]
        return State(load_file(found[-1] / _TENSORS), tuple(losses))
