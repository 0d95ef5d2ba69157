"""What a builder process does: fetch a model, apply a recipe, save the artifact, and record what it should answer."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from experiments import catalog
from experiments.child import Handler, Reply
from experiments.measured import probe_outputs
from experiments.parts.cache import Cache, link_folder, weight_files
from experiments.parts.contents import artifact_record, streamed_bytes
from experiments.parts.packs import Pack
from experiments.parts.recipe import computes, label, plan
from experiments.protocols import (
    ALL_ROWS,
    BuildContext,
    DatasetSource,
    DeviceKind,
    Examples,
    Host,
    ModelFacts,
    Runtime,
    Session,
    Task,
    Technique,
    Use,
    no_rows,
)
from experiments.records import ExperimentError, FailureKind, Label, StepEffect, digest

#: Raise it when what :class:`_Artifact` leaves in a folder changes.
BUILD_VERSION = 4
#: Libraries that every build depends on, whatever its steps are.
ALWAYS = frozenset({"torch", "transformers", "optimum-onnx"})


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

    def build(self, *, out: str, order: dict[str, Any]) -> dict[str, Any]:
        """Fill ``out`` as :class:`_Artifact` does; says what was reused for it."""
        artifact = _Artifact(Path(out), Order.model_validate(order), self._reply)
        artifact.make()
        return {"reused": artifact.reused}


class Order(BaseModel):
    """What to build, as the conducting process says it.

    Attributes:
        model_sha256: over everything that decides what the model answers.
        data: hash of the rows that steps learn from or calibrate on.
        libraries: versions of the distributions that decide what the steps make.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    facts: dict[str, Any]
    task: Task
    device: DeviceKind
    recipe: tuple[dict[str, Any], ...]
    runtime: dict[str, Any]
    dataset: dict[str, Any] | None
    pack: str
    seed: int
    threads: int
    sequence_length: int
    isa: tuple[str, ...]
    model_sha256: str
    data: dict[Use, str]
    libraries: dict[str, str]
    cache: str
    path_roots: tuple[str, ...] | None
    offline: bool

    def host(self) -> Host:
        """Where this build may read and write."""
        roots = None if self.path_roots is None else tuple(map(Path, self.path_roots))
        return Host(cache=Path(self.cache), path_roots=roots, offline=self.offline)

    def origin(self) -> dict[str, Any]:
        """All that determines what a build gives, besides its steps and what these depend on."""
        named = {"model_sha256", "task", "device", "isa", "threads", "seed", "sequence_length"}
        return self.model_dump(mode="json", include=named)


class _Artifact:
    """One artifact in the making: ``files/`` (what is deployed), ``built.json``, and what it should answer.

    Answers to the probe: ``source/`` of the model as it came, ``reference/`` of the module that an exact artifact
    must equal (pruned or trained, not yet narrowed), ``built/`` of what was saved, as seen by this process.

    The module after each dear step, and the exported graph, are kept in the cache by all that determines them. An
    ONNX artifact whose export is there is made without torch.
    """

    def __init__(self, folder: Path, order: Order, reply: Reply) -> None:
        self._folder = folder
        self._order = order
        self._reply = reply
        self.reused: list[str] = []
        self._notes: tuple[str, ...] = ()
        self._fresh: Any = None
        self._cache = Cache(Path(order.cache))
        step_adapter: TypeAdapter[Technique] = TypeAdapter(catalog.union("technique"))
        self._recipe = [step_adapter.validate_python(step) for step in order.recipe]
        self._target: Runtime = TypeAdapter(catalog.union("runtime")).validate_python(order.runtime)
        planned = plan(self._recipe, self._target)
        if isinstance(planned, str):
            raise ExperimentError(FailureKind.UNSUPPORTED, planned, field="recipe")
        self._plan = planned
        #: Steps after which the model is meant to answer differently; what is narrowed comes after them.
        self._altering = sum(step.alters for step in planned.torch)
        self._pack = Pack(Path(order.pack))
        self._files, self._work = folder / "files", folder / "work"
        facts = order.facts
        self._context = BuildContext(
            task=order.task,
            device=order.device,
            facts=ModelFacts(**{**facts, **{k: tuple(v) for k, v in facts.items() if isinstance(v, list)}}),
            source=Path(order.source),
            work=self._work,
            seed=order.seed,
            threads=order.threads,
            sequence_length=order.sequence_length,
            isa=order.isa,
            log=self._log,
            progress=self._progress,
            probe=self._pack.probe(),
            rows=self._rows,
        )

    def make(self) -> None:
        """Build it.

        Raises:
            ExperimentError: whatever a step, the export or a check raises.
        """
        self._files.mkdir()
        self._work.mkdir()
        if self._target.form == "onnx":
            effects, about = self._onnx()
        else:
            module, effects, about = self._torch(self._folder)
            self._target.save(module, self._files, self._context, ())
            self._notes = self._target.finish(self._files, self._context)
        shutil.rmtree(self._work)
        steps = self._plan.steps
        quantizing = [step for step in steps if step.quantizes]
        record = artifact_record(
            self._files,
            self._target.form,
            label(steps, effects),
            about["parameters"],
            quantizing[-1].makes if quantizing else None,
        )
        work = {
            "bytes_per_step": float(streamed_bytes(self._files, frozenset(about["tables"]))),
            "zeros": float(about["zeros"]),
            **({"flops_per_sample": about["flops"]} if about["flops"] else {}),
        }
        built = {
            "record": record.model_dump(mode="json"),
            "effects": [effect.model_dump(mode="json") for effect in effects],
            "quantized": bool(quantizing),
            "notes": self._notes,
            "computes": computes(steps, effects, self._context.facts.dtype),
            "work": work,
        }
        (self._folder / "built.json").write_text(json.dumps(built))

    # --- torch ------------------------------------------------------------------------------------------------

    def _torch(self, folder: Path) -> tuple[Any, list[StepEffect], dict[str, Any]]:
        """The module after all torch steps, their effects, and what is known of it; ``folder`` gets the answers."""
        from experiments.parts.tied_weights import parameter_count
        from experiments.parts.torch_session import TorchSession, set_up

        set_up(self._order.device, self._order.threads)
        shutil.copytree(self._remember("sources", {}, self._source, steps=0), folder / "source")
        module, effects = self._altered(self._altering)
        live = TorchSession(module, self._order.task, "cpu", 0)
        if self._altering:
            self._probe(live, folder / "reference")
        else:
            shutil.copytree(folder / "source", folder / "reference")
        about = {
            "parameters": parameter_count(module),
            "zeros": zero_weights(module) if self._altering else 0,
            "tables": sorted(_lookup_tables(module)),
            "flops": _flops_per_sample(live, self._pack),
        }
        for index, step in enumerate(self._plan.torch[self._altering :], self._altering):
            module, effect = self._applied(step, module, index, effects)
            effects.append(effect)
        if self._altering < len(self._plan.torch):
            self._probe(TorchSession(module, self._order.task, "cpu", 0), folder / "built")
        else:
            shutil.copytree(folder / "reference", folder / "built")
        return module, effects, about

    def _source(self, folder: Path) -> None:
        from experiments.parts.torch_session import TorchSession

        module = self._loaded()
        self._probe(TorchSession(module, self._order.task, "cpu", 0), folder)
        self._fresh = module  # answering has not changed it

    def _loaded(self) -> Any:
        """The model as it came."""
        from experiments.parts.loading import load_module

        module, self._fresh = self._fresh, None
        if module is not None:
            return module
        _seed(self._order.seed)
        return load_module(self._context.source, self._order.task)

    def _altered(self, steps: int) -> tuple[Any, list[StepEffect]]:
        """The module after the first ``steps`` steps, all of them altering, and their effects.

        The result of a dear step is kept: where it is there, nothing before it is done.
        """
        from experiments.parts.torch_files import load_module

        if not steps:
            return self._loaded(), []
        step = self._plan.torch[steps - 1]
        if not step.shared:
            module, effects = self._altered(steps - 1)
            module, effect = self._applied(step, module, steps - 1, effects)
            return module, [*effects, effect]
        made: list[Any] = []
        folder = self._remember("modules", {}, lambda entry: made.append(self._keep(entry, steps)), steps=steps)
        effects = [StepEffect.model_validate(effect) for effect in json.loads((folder / "effects.json").read_text())]
        return (made[0] if made else load_module(folder / "files", "cpu")), effects

    def _keep(self, folder: Path, steps: int) -> Any:
        """The module after the first ``steps`` steps, which is saved in ``folder`` with the effects of all of them."""
        from experiments.parts.companions import copy_companions
        from experiments.parts.torch_files import save_module

        module, effects = self._altered(steps - 1)
        module, effect = self._applied(self._plan.torch[steps - 1], module, steps - 1, effects)
        (folder / "files").mkdir()
        save_module(module, folder / "files")
        copy_companions(self._context.source, folder / "files")
        every = [*effects, effect]
        (folder / "effects.json").write_text(json.dumps([e.model_dump(mode="json") for e in every]))
        return module

    def _applied(self, step: Technique, module: Any, index: int, effects: list[StepEffect]) -> tuple[Any, StepEffect]:
        """``step`` applied to ``module``, seeded and timed."""
        earlier = self._plan.torch[:index]
        labels = [effect.label or before.label for before, effect in zip(earlier, effects, strict=True)]
        checkpoints = self._cache.root / "checkpoints" / digest(self._address({}, index + 1))[:32]
        context = replace(
            self._context,
            remember=partial(self._remember, steps=index, asking=step),
            checkpoints=checkpoints,
            masked=Label.MASKED_SPARSE in labels,
            through=self._plan.through.get(index),
        )
        _seed(self._order.seed)
        started = time.monotonic()
        module, effect = step.apply_torch(module, context)
        shutil.rmtree(checkpoints, ignore_errors=True)
        effect = effect.model_copy(update={"seconds": round(time.monotonic() - started, 3)})
        self._log(f"{step.technique}: {effect.summary}")
        return module, effect

    # --- ONNX -------------------------------------------------------------------------------------------------

    def _onnx(self) -> tuple[list[StepEffect], dict[str, Any]]:
        """Export (once for all experiments that start alike), apply the ONNX steps, check."""
        exported = self._remember("exports", {"form": self._target.form}, self._export, steps=len(self._plan.torch))
        link_folder(exported / "files", self._files)
        for name in ("source", "reference"):
            shutil.copytree(exported / name, self._folder / name)
        shutil.copytree(exported / "built", self._folder / "exported")
        saved = json.loads((exported / "torch.json").read_text())
        effects = [StepEffect.model_validate(effect) for effect in saved["effects"]]
        for index, step in enumerate(self._plan.onnx, len(self._plan.torch)):
            effects.append(self._apply_onnx(step, index))
            self._log(f"{step.technique}: {effects[-1].summary}")
        self._notes = self._target.finish(self._files, self._context)
        # What the final graph answers stands beside what the module answered before the export.
        session = self._target.open(self._files, self._order.device, self._order.threads)
        self._probe(session, self._folder / "built")
        return effects, saved["about"]

    def _export(self, folder: Path) -> None:
        module, effects, about = self._torch(folder)
        (folder / "files").mkdir()
        self._target.save(module, folder / "files", self._context, self._plan.onnx)
        saved = {"effects": [effect.model_dump(mode="json") for effect in effects], "about": about}
        (folder / "torch.json").write_text(json.dumps(saved))

    def _exported_module(self) -> Any:
        """The torch module behind the graph; where the export was kept, this process has not used torch before."""
        from experiments.parts.torch_session import set_up

        set_up(self._order.device, self._order.threads)
        return self._altered(self._altering)[0]

    def _apply_onnx(self, step: Technique, index: int) -> StepEffect:
        scratch = self._work / f"{index}-{step.technique}"
        scratch.mkdir()
        context = replace(
            self._context, remember=partial(self._remember, steps=index, asking=step), module=self._exported_module
        )
        started = time.monotonic()
        effect = step.apply_onnx(self._files / "model.onnx", scratch / "model.onnx", context)
        for name in weight_files(self._files):
            (self._files / name).unlink()
        for path in scratch.iterdir():
            shutil.move(path, self._files / path.name)
        return effect.model_copy(update={"seconds": round(time.monotonic() - started, 3)})

    # --- what all of it needs -----------------------------------------------------------------------------------

    def _address(self, key: Mapping[str, Any], steps: int, asking: Technique | None = None) -> dict[str, Any]:
        """What determines the model after the first ``steps`` steps, and ``key`` besides.

        Rows and libraries count if one of these steps, or the one that is ``asking``, uses them: what a later step
        calibrates on does not change an export.
        """
        done = self._plan.steps[:steps]
        using = (*done, *([asking] if asking is not None else []))
        through = {n: q.model_dump(mode="json") for n, q in self._plan.through.items() if n < steps}
        data, libraries = self._order.data, self._order.libraries
        needed = {use for step in using for use in step.needs()}
        special = {name for step in self._plan.steps for name in step.libraries}
        wanted = {name for step in using for name in step.libraries}
        return {
            "build": BUILD_VERSION,
            **self._order.origin(),
            "data": {use: sha256 for use, sha256 in data.items() if use in needed},
            "libraries": {n: v for n, v in libraries.items() if n in wanted or n not in special - ALWAYS},
            "steps": [step.model_dump(mode="json") for step in done],
            "through": through,
            **key,
        }

    def _remember(
        self,
        kind: str,
        key: Mapping[str, Any],
        make: Callable[[Path], None],
        *,
        steps: int,
        asking: Technique | None = None,
    ) -> Path:
        # Answers to the probe depend on the pack; the model and what is learnt of it do not.
        probed = {"pack": Path(self._order.pack).name} if kind in ("sources", "exports") else {}
        folder, reused = self._cache.get(kind, {**self._address(key, steps, asking), **probed}, make)
        if reused and kind != "sources":
            after = " -> ".join(step.technique for step in self._plan.steps[:steps]) or "the model as it is"
            words = {"modules": "the module", "exports": "the export"}.get(kind, f"the {kind}")
            self.reused.append(f"{words} of {after}")
        return folder

    def _rows(self, use: Use, limit: int | None = None) -> Examples:
        """The rows of the split that is for ``use``."""
        source: DatasetSource | None = (
            TypeAdapter(catalog.union("dataset")).validate_python(self._order.dataset) if self._order.dataset else None
        )
        split = source.split_for(use) if source is not None else None
        if source is None or split is None:
            return no_rows(use, limit)
        return source.load(self._order.host(), self._order.task, split=split, limit=limit or ALL_ROWS)

    def _probe(self, session: Session, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        probe_outputs(session, self._pack.probe(), folder)

    def _log(self, message: str) -> None:
        self._reply({"kind": "log", "message": message})

    def _progress(self, fraction: float, message: str = "", seconds_left: float | None = None) -> None:
        self._reply({"kind": "progress", "fraction": fraction, "message": message, "seconds_left": seconds_left})


def zero_weights(module: Any) -> int:
    """Weights of matrices and kernels that are exactly zero; tied ones count once."""
    from experiments.parts.tied_weights import unique_tensors

    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return sum(int((t == 0).sum()) for n, t in unique_tensors(module).items() if n in parameters and t.ndim > 1)


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
    """Facts as JSON data, for an :class:`Order`."""
    return asdict(facts)
