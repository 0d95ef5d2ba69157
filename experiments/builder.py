"""What a builder process does: fetch a model, apply a recipe, save the artifact, and record what it should answer."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from experiments import catalog
from experiments.child import Handler, Reply
from experiments.measured import probe_outputs
from experiments.parts.cache import weight_files
from experiments.parts.contents import artifact_record, streamed_bytes
from experiments.parts.packs import Pack
from experiments.parts.recipe import computes, label, plan
from experiments.protocols import BuildContext, DeviceKind, Host, ModelFacts, Runtime, Session, Task, Technique
from experiments.records import ExperimentError, FailureKind, StepEffect

#: Raise it when what :meth:`_Builder.build` leaves in a folder changes.
BUILD_VERSION = 2


def handlers(reply: Reply) -> dict[str, Handler]:
    """The operations of a builder process."""
    process = _Builder(reply)
    return {"fetch": process.fetch, "build": process.build}


class _Builder:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def _tell(self, message: str, fraction: float | None) -> None:
        if fraction is None:
            self._reply({"kind": "log", "message": message})
        else:
            self._reply({"kind": "progress", "fraction": fraction, "message": message})

    def fetch(
        self, *, model: dict[str, Any], cache: str, path_roots: list[str] | None, offline: bool
    ) -> dict[str, Any]:
        """Make the model's folder exist; may download, convert or train."""
        source = TypeAdapter(catalog.union("model")).validate_python(model)
        host = Host(
            cache=Path(cache),
            path_roots=tuple(map(Path, path_roots)) if path_roots is not None else None,
            offline=offline,
            tell=self._tell,
        )
        return {"folder": str(source.fetch(host))}

    def build(
        self,
        *,
        source: str,
        facts: dict[str, Any],
        task: Task,
        device: DeviceKind,
        recipe: list[dict[str, Any]],
        runtime: dict[str, Any],
        pack: str,
        out: str,
        seed: int,
        threads: int,
        sequence_length: int,
        isa: list[str],
    ) -> dict[str, Any]:
        """Fill ``out`` with ``files/`` (what is deployed), ``built.json`` and the expected probe outputs."""
        from experiments.parts.loading import load_module
        from experiments.parts.tied_weights import parameter_count
        from experiments.parts.torch_session import TorchSession, set_up

        folder = Path(out)
        files, work = folder / "files", folder / "work"
        files.mkdir()
        work.mkdir()
        prepared = Pack(Path(pack))
        step_adapter: TypeAdapter[Technique] = TypeAdapter(catalog.union("technique"))
        steps = [step_adapter.validate_python(step) for step in recipe]
        target: Runtime = TypeAdapter(catalog.union("runtime")).validate_python(runtime)
        known = ModelFacts(**{**facts, **{k: tuple(v) for k, v in facts.items() if isinstance(v, list)}})
        context = BuildContext(
            task=task,
            device=device,
            facts=known,
            source=Path(source),
            work=work,
            seed=seed,
            threads=threads,
            sequence_length=sequence_length,
            isa=tuple(isa),
            log=lambda message: self._tell(message, None),
            progress=lambda fraction: self._tell("", fraction),
            probe=prepared.probe(),
        )
        planned = plan(steps, target)
        if isinstance(planned, str):
            raise ExperimentError(FailureKind.UNSUPPORTED, planned, field="recipe")

        set_up(device, threads)
        _seed(seed)
        module = load_module(Path(source), task)

        def probe(session: Session, name: str) -> None:
            (folder / name).mkdir()
            probe_outputs(session, prepared.probe(), folder / name)

        live = TorchSession(module, task, "cpu", 0)
        probe(live, "source")
        flops = _flops_per_sample(live, prepared)
        tables = _lookup_tables(module)
        parameters = parameter_count(module)
        effects: list[StepEffect] = []
        for step in planned.torch:
            module, effect = _timed(partial(step.apply_torch, module, context))
            effects.append(effect)
            self._tell(f"{step.technique}: {effect.summary}", None)
            if not step.quantizes:
                parameters = parameter_count(module)
        if planned.torch:
            probe(TorchSession(module, task, "cpu", 0), "built")
        else:
            shutil.copytree(folder / "source", folder / "built")
        target.save(module, files, context, planned.onnx)
        del module, live
        for step in planned.onnx:
            effects.append(self._apply_onnx(step, files, context))
            self._tell(f"{step.technique}: {effects[-1].summary}", None)
        target.finish(files, context)
        if target.form == "onnx":
            # What the exported graph answers stands beside what the module answered before the export.
            shutil.move(folder / "built", folder / "exported")
            probe(target.open(files, device, threads), "built")
        shutil.rmtree(work)
        quantizing = [step for step in steps if step.quantizes]
        record = artifact_record(
            files, target.form, label(steps, effects), parameters, quantizing[-1].makes if quantizing else None
        )
        work_done = {"bytes_per_step": float(streamed_bytes(files, tables))}
        if flops:
            work_done["flops_per_sample"] = flops
        (folder / "built.json").write_text(
            json.dumps(
                {
                    "record": record.model_dump(mode="json"),
                    "effects": [effect.model_dump(mode="json") for effect in effects],
                    "quantized": bool(quantizing),
                    "computes": computes(steps, effects, known.dtype),
                    "work": work_done,
                }
            )
        )
        return {}

    def _apply_onnx(self, step: Technique, files: Path, context: BuildContext) -> StepEffect:
        scratch = context.work / step.technique
        scratch.mkdir()
        started = time.monotonic()
        effect = step.apply_onnx(files / "model.onnx", scratch / "model.onnx", context)
        for name in weight_files(files):
            (files / name).unlink()
        for path in scratch.iterdir():
            shutil.move(path, files / path.name)
        return effect.model_copy(update={"seconds": round(time.monotonic() - started, 3)})


def _timed(apply: Callable[[], tuple[Any, StepEffect]]) -> tuple[Any, StepEffect]:
    started = time.monotonic()
    module, effect = apply()
    return module, effect.model_copy(update={"seconds": round(time.monotonic() - started, 3)})


def _seed(seed: int) -> None:
    """Seed everything that a step may draw from."""
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _lookup_tables(module: Any) -> frozenset[str]:
    """Names of the embedding tables that nothing but a lookup reads (a tied head reads its table whole)."""
    import torch

    from experiments.parts.tied_weights import tied_names

    tied = tied_names(module)
    shared = set(tied) | set(tied.values())
    names = {f"{name}.weight" for name, child in module.named_modules() if isinstance(child, torch.nn.Embedding)}
    return frozenset(names - shared)


def _flops_per_sample(session: Session, pack: Pack) -> float | None:
    """Floating-point operations of one request (multiply and add counted apart), as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        session.forward({name: np.array(array[:1]) for name, array in pack.requests().items()})
    return float(counter.get_total_flops()) or None


def facts_payload(facts: ModelFacts) -> dict[str, Any]:
    """Facts as JSON data, for :meth:`_Builder.build`."""
    return asdict(facts)
