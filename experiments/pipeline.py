"""The way of one experiment: load -> apply recipe -> canary -> measure -> quality -> report. Read this file first.

This process only conducts: models are built and measured in fresh children (see launch.py), and torch is never
imported here. Whatever goes wrong ends as a typed failure in the report, beside everything measured until then.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from experiments import canary, catalog, hardware, pairing
from experiments.builder import ALWAYS, BUILD_VERSION, Order, facts_payload
from experiments.card import folder_name, write_card
from experiments.child import typed
from experiments.launch import Child, Events, Limits, restrict, to_descriptor, write_json
from experiments.parts.cache import Cache, remembered_sha256, sha256_file
from experiments.parts.overlap import refuse_overlap, row_keys
from experiments.parts.packs import PACK_VERSION, Pack, make_pack
from experiments.parts.recipe import USES, uses
from experiments.preflight import PROCESS_BYTES, preflight
from experiments.protocols import ALL_ROWS, Examples, Host, ModelFacts, Observations, Outputs, Task, Use
from experiments.records import (
    ArtifactRecord,
    Canary,
    Ceilings,
    Environment,
    Event,
    ExperimentError,
    Failure,
    Measurement,
    Report,
    StepEffect,
    StudyReport,
    digest,
)
from experiments.spec import ExperimentSpec, StudySpec, Variant
from experiments.verdict import verdict

_COMPILATION = frozenset({"compile_s", "recompiles", "graph_breaks"})
#: Both processes are kept live together if their estimated memory stays below this share of what is free.
TOGETHER_SHARE = 0.8


@dataclass
class Bench:
    """Where and how experiments are conducted, one after the other.

    Attributes:
        paired: False is for benchmarks of the engine itself: no baseline beside the candidate, one measured process, no
            quality. Such a report is marked, and no server accepts it.
        requests: for benchmarks too: exactly this many timed requests a side at each batch size.
        more: experiments follow, for which the builder stays: it has its libraries loaded.
    """

    paired: bool = True
    requests: tuple[int, ...] = ()
    more: bool = False
    _builder: Child | None = None

    def builder(self, events: Events, limits: Limits, environment: dict[str, str]) -> Child:
        """The process that builds, now for the experiment of ``events`` and ``limits``; started if there is none."""
        if self._builder is None:
            self._builder = Child("build", events, limits, environment)
        self._builder.serve(events, limits)
        return self._builder

    def close(self, grace: float = 5.0) -> None:
        """End the builder."""
        if self._builder is not None:
            self._builder.close(grace)
            self._builder = None


def run_experiment(
    spec: ExperimentSpec, host: Host, events: Events, artifacts: Path | None = None, bench: Bench | None = None
) -> Report:
    """Run one experiment on this machine, with the cores that this process may use.

    Args:
        spec: what to run; complete in itself.
        host: where to cache and what may be read.
        events: receives stages, progress, log lines and measurements as they come.
        artifacts: where to keep a copy of the finished artifact.
        bench: what experiments of one study share; left open for the next one, closed here if it is none.

    Returns:
        The report; its ``status`` is ``failed`` with a typed ``failure`` if the experiment could not be finished.
        What was measured before the failure is kept.
    """
    run = _Run(spec, host, events, bench or Bench())
    failure: Failure | None = None
    try:
        with events.stage("load", 0.10):
            run.load()
        with events.stage("build", 0.25):
            run.build()
        with events.stage("canary", 0.05):
            run.canary()
        with events.stage("measure", 0.40):
            run.measure()
        with events.stage("quality", 0.18):
            run.quality()
        with events.stage("report", 0.02):
            run.conclude()
            run.keep(artifacts)
    except ExperimentError as error:
        failure = error.failure
    except Exception as error:  # the boundary of an experiment: nothing escapes untyped
        failure = typed(error)
        events.log(f"internal error: {type(error).__name__}: {error}")
        if os.environ.get("STEELYARD_TRACEBACK"):
            raise
    finally:
        run.close()
        if failure is not None:
            run.bench.close(grace=0)
    if failure is not None:
        events.emit("failure", failure=failure)
    return run.report(failure)


@dataclass
class _Built:
    """An artifact in the cache."""

    variant: Variant
    folder: Path
    record: ArtifactRecord
    effects: tuple[StepEffect, ...]
    quantized: bool
    computes: str
    work: dict[str, float]

    @property
    def files(self) -> Path:
        return self.folder / "files"


@dataclass
class _Run:
    """What is known of an experiment so far; each method is one stage."""

    spec: ExperimentSpec
    host: Host
    events: Events
    bench: Bench
    notes: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    checked: Canary | None = None
    environment: Environment | None = None
    _task: Task | None = None
    _candidate: _Built | None = None
    _sides: list[pairing.Side] = field(default_factory=list)

    def __post_init__(self) -> None:
        resources = self.spec.resources
        self._limits = Limits(resources.timeout_s, resources.memory_mib)
        self._cache = Cache(self.host.cache)
        (self.host.cache / "scratch").mkdir(parents=True, exist_ok=True)
        self._scratch = Path(tempfile.mkdtemp(prefix="attempt-", dir=self.host.cache / "scratch"))
        self._cores = hardware.allowed_cores()
        self._seen: Observations | None = None
        self._baseline: _Built | None = None
        self._ceilings: Ceilings | None = None
        #: Hash of the rows to learn from or to calibrate on, where there are any.
        self._data: dict[Use, str] = {}

    # --- load -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Check the spec against this machine, fetch the model and prepare the data."""
        spec = self.spec
        checked = preflight(spec, self.host, hardware.devices())
        if checked.failures:
            raise ExperimentError.of(checked.failures[0])
        self.notes += checked.notes
        self._folder = spec.model.ready(self.host) or Path(
            self._build_process().call(
                "fetch",
                model=spec.model.model_dump(mode="json"),
                cache=str(self.host.cache),
                path_roots=self._path_roots(),
                offline=self.host.offline,
            )["folder"]
        )
        facts = spec.model.inspect(self.host)
        assert facts is not None, "a fetched model has facts"
        self._facts: ModelFacts = facts
        self._task = checked.task or facts.task
        assert self._task is not None, "preflight refuses a model whose task is unknown"
        self._model_sha256 = _folder_sha256(self.host.cache, self._folder)
        examples = self._examples(self._task)
        self._pack = self._make_pack(examples)
        self._environment(examples)
        self.events.log(
            f"model {facts.name}: {facts.parameters / 1e6:.1f} M parameters, sha256 {self._model_sha256[:12]}; "
            f"data {examples.name if examples else 'none'}: {len(examples) if examples else 0} examples; "
            f"{len(self._cores)} threads on cores {','.join(map(str, self._cores))}"
        )

    def _examples(self, task: Task) -> Examples | None:
        """The evaluation rows, none of which may be among those that a model is made from."""
        source = self.spec.dataset
        if source is None:
            return None
        examples = source.load(self.host, task) if self.bench.paired else None
        needed = {use for variant in (self.spec.variant, self.spec.baseline) for use in uses(variant)}
        named = {"train": source.train_split, "calibration": source.calibration_split}
        for use in USES:
            split = source.split_for(use) if use in needed else named[use]
            if split is not None:
                rows = source.load(self.host, task, split=split, limit=ALL_ROWS)
                if examples is not None:
                    refuse_overlap(row_keys(examples), row_keys(rows), use, split)
                self._data[use] = rows.sha256
        return examples

    def _make_pack(self, examples: Examples | None) -> Pack:
        spec, task = self.spec, self._task
        assert task is not None
        key = {
            "pack": PACK_VERSION,
            "model": self._model_sha256,
            "task": task,
            "data": examples.sha256 if examples else None,
            "workload": spec.workload.model_dump(include={"sequence_length"}),
            "seed": spec.seed,
        }

        def make(folder: Path) -> None:
            make_pack(
                folder,
                model=self._folder,
                facts=self._facts,
                task=task,
                examples=examples,
                workload=spec.workload,
                seed=spec.seed,
            )

        folder, reused = self._cache.get("packs", key, make)
        if reused:
            self.reused.append("prepared data")
        return Pack(folder)

    def _environment(self, examples: Examples | None) -> None:
        spec = self.spec
        kind = spec.resources.device
        devices = tuple(d for d in hardware.devices() if d.kind == kind)[: spec.devices]
        libraries = {"numpy", "transformers", "tokenizers", *spec.variant.runtime.libraries()}
        libraries.update(spec.baseline.runtime.libraries())
        libraries.update(name for step in spec.variant.recipe for name in step.libraries)
        if kind == "cpu":
            self._ceilings = hardware.ceilings(self.host.cache, self._cores)
        else:
            self._ceilings = hardware.cuda_ceilings(self.host.cache, 0)
        self.environment = Environment(
            model=spec.model.display(),
            model_revision=self._facts.revision,
            model_sha256=self._model_sha256,
            model_licence=spec.model.licence(self._folder),
            dataset=examples.name if examples else None,
            dataset_sha256=examples.sha256 if examples else None,
            workload_sha256=digest(spec.workload.model_dump(mode="json")),
            spec_sha256=spec.sha256(),
            seed=spec.seed,
            ceilings=self._ceilings,
            **hardware.environment(sorted(libraries), self._cores, devices),
        )

    # --- build ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make the baseline's and the candidate's artifacts, each in the cache by everything that determines it."""
        if not self.spec.is_baseline and self.bench.paired:
            try:
                self._baseline = self._built(self.spec.baseline)
            except ExperimentError as error:
                # It costs the ratio, not the candidate's own numbers.
                self.notes.append(f"no ratios: the baseline could not be built ({error.failure.message})")
        self._candidate = self._built(self.spec.variant)
        if self.spec.is_baseline and self.bench.paired:
            self._baseline = self._candidate
        # Where memory is limited, an idle builder must not take of it.
        if not self.bench.more or self.spec.resources.memory_mib is not None:
            self.bench.close()

    def _built(self, variant: Variant) -> _Built:
        spec = self.spec
        own = {name for step in variant.recipe for name in step.libraries}
        order = Order(
            source=str(self._folder),
            facts=facts_payload(self._facts),
            task=self._task_known(),
            device=spec.resources.device,
            recipe=tuple(step.model_dump(mode="json") for step in variant.recipe),
            runtime=variant.runtime.model_dump(mode="json"),
            dataset=spec.dataset.model_dump(mode="json") if spec.dataset else None,
            pack=str(self._pack.folder),
            seed=spec.seed,
            threads=len(self._cores),
            sequence_length=spec.workload.sequence_length,
            isa=hardware.isa(),
            model_sha256=self._model_sha256,
            data={use: self._data[use] for use in sorted(uses(variant)) if use in self._data},
            libraries=hardware.library_versions({*ALWAYS, *own}),
            cache=str(self.host.cache),
            path_roots=self._path_roots(),
            offline=self.host.offline,
        )
        key = {
            "build": BUILD_VERSION,
            **order.origin(),
            **order.model_dump(mode="json", include={"recipe", "runtime", "data", "libraries"}),
            "pack": self._pack.folder.name,
            "runtime_libraries": hardware.library_versions(set(variant.runtime.libraries())),
        }

        def make(folder: Path) -> None:
            self.events.log(f"build {variant.name}: {variant.recipe_text} for {variant.runtime.kind}")
            answer = self._build_process().call("build", out=str(folder), order=order.model_dump(mode="json"))
            self.reused += [words for words in answer["reused"] if words not in self.reused]

        folder, reused = self._cache.get("artifacts", key, make)
        if reused:
            self.reused.append(f"artifact of {variant.name}")
        saved = json.loads((folder / "built.json").read_text())
        if variant is spec.variant:
            self.notes += saved.get("notes", ())
        return _Built(
            variant=variant,
            folder=folder,
            record=ArtifactRecord.model_validate(saved["record"]),
            effects=tuple(StepEffect.model_validate(effect) for effect in saved["effects"]),
            quantized=saved["quantized"],
            computes=saved["computes"],
            work=saved["work"],
        )

    def _path_roots(self) -> tuple[str, ...] | None:
        roots = self.host.path_roots
        return None if roots is None else tuple(map(str, roots))

    def _task_known(self) -> Task:
        assert self._task is not None, "loading settles the task"
        return self._task

    def _build_process(self) -> Child:
        return self.bench.builder(self.events, self._limits, self._child_environment())

    def _child_environment(self) -> dict[str, str]:
        threads = str(len(self._cores))
        return {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **({"HF_HUB_OFFLINE": "1"} if self.host.offline else {}),
        }

    # --- canary -----------------------------------------------------------------------------------------------

    def canary(self) -> None:
        """Open both artifacts in fresh processes and let each answer the probe."""
        assert self._candidate is not None
        candidate, baseline = self._candidate, self._baseline
        sides = [self._side("candidate", candidate)]
        if baseline is not None:
            sides.insert(0, self._side("baseline", baseline))
        self._together = self._fits(candidate, baseline)
        if not self._together:
            self.notes.append("baseline and candidate do not fit into memory together: blocks alternate with reloads")
        for side in list(sides):
            built = candidate if side.name == "candidate" else baseline
            assert built is not None
            out = self._scratch / f"probe-{side.name}"
            out.mkdir()
            try:
                side.call("probe", out=str(out))
                checked = canary.inspect(
                    built.folder,
                    out,
                    dtype=built.record.dtype,
                    quantized=built.quantized,
                    fused=built.variant.runtime.fuses,
                )
            except ExperimentError as error:
                error = _located(error, side)
                side.close(grace=0)
                if side.name == "candidate":
                    raise error from None
                self.notes.append(f"no ratios: the baseline failed its canary ({error.failure.message})")
                sides.remove(side)
                self._baseline = None
                continue
            if side.name == "candidate":
                self.checked = checked
                self.events.log(
                    f"canary: batch 1 and padded batch differ by {checked.batch_difference:.3g}, "
                    f"artifact and source by {checked.source_difference:.3g}, round trip by "
                    f"{checked.round_trip_difference:.3g}; proof {json.dumps(side.opened.get('proof', {}))}"
                )
            if not self._together:
                side.close()
        self._sides = sides

    def _side(self, name: Any, built: _Built) -> pairing.Side:
        opening = {
            "folder": str(built.files),
            "runtime": built.variant.runtime.model_dump(mode="json"),
            "device": self.spec.resources.device,
            "threads": len(self._cores),
            "pack": str(self._pack.folder),
            "task": self._task,
            "new_tokens": self.spec.workload.new_tokens,
        }
        # What is compiled is kept for the later fresh processes of this side; the first one compiles from nothing.
        environment = {
            **self._child_environment(),
            "TORCHINDUCTOR_CACHE_DIR": str(self._scratch / f"compiled-{name}"),
        }
        side = pairing.Side(name, lambda: Child("measure", self.events, self._limits, environment), opening)
        self._sides.append(side)
        return side

    def _fits(self, candidate: _Built, baseline: _Built | None) -> bool:
        if baseline is None:
            return True
        # Weights are read once more while they are loaded or prepacked, hence twice their size.
        needed = 2 * (candidate.record.bytes + baseline.record.bytes) + 2 * PROCESS_BYTES
        limit = self.spec.resources.memory_mib
        available = min(psutil.virtual_memory().available, hardware.memory_bytes())
        return needed < TOGETHER_SHARE * min(available, limit * 2**20 if limit else available)

    # --- measure ----------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """Time candidate and baseline in turn, then read their memory."""
        assert self._candidate is not None and self._task is not None
        blocks = pairing.measure(
            self._sides,
            self.spec.workload,
            self.events,
            together=self._together,
            closing=self._limits.check,
            rounds=None if self.bench.paired else 1,
            requests=self.bench.requests,
        )
        sides = {side.name: side for side in self._sides}
        baseline = self._baseline
        adapters = sides["candidate"].call("adapters", batch_size=max(self.spec.workload.batch_sizes))
        self._seen = Observations(
            spec=self.spec,
            task=self._task,
            is_baseline=self.spec.is_baseline,
            artifact=self._candidate.record,
            baseline_artifact=baseline.record if baseline else None,
            blocks=blocks,
            memory=sides["candidate"].memory,
            baseline_memory=sides["baseline"].memory if "baseline" in sides else {},
            compilation={k: v for k, v in sides["candidate"].memory.items() if k in _COMPILATION},
            adapters=adapters.get("readings", {}),
            weights_bytes=sides["candidate"].opened.get("weights_bytes"),
            pack=self._pack.manifest,
            ceilings=self._ceilings,
            work=self._candidate.work,
            dtype=self._candidate.computes,
            devices=self.environment.devices if self.environment else (),
        )
        self._conclude({"latency", "memory", "size", "cost", "limit"})

    # --- quality ----------------------------------------------------------------------------------------------

    def quality(self) -> None:
        """Let candidate and baseline answer the same examples; the baseline's answers are kept for the whole study."""
        assert self._seen is not None and self._candidate is not None
        if self.spec.dataset is None or not self.bench.paired:
            return
        sides = {side.name: side for side in self._sides}
        mine = self._scratch / "outputs"
        mine.mkdir()
        if not self._together and "baseline" in sides:
            sides["baseline"].close()
        sides["candidate"].call("evaluate", out=str(mine))
        baseline: Outputs | None = None
        if "baseline" in sides and self._baseline is not None:
            if not self._together:
                sides["candidate"].close()
            key = {
                "artifact": self._baseline.folder.name,
                "files": self._baseline.record.sha256,
                "pack": self._pack.folder.name,
                "runtime": self._baseline.variant.runtime.model_dump(mode="json"),
                "device": self.spec.resources.device,
            }

            def answer(out: Path) -> None:
                sides["baseline"].call("evaluate", out=str(out))

            folder, reused = self._cache.get("outputs", key, answer)
            if reused:
                self.reused.append("the baseline's answers")
            baseline = _outputs(folder, self._pack)
        self._seen = replace(self._seen, candidate=_outputs(mine, self._pack), baseline=baseline)

    # --- report -----------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """Turn all observations into measurements."""
        if self.bench.paired:
            self._conclude({"quality", "fidelity"})

    def _conclude(self, groups: set[str]) -> None:
        assert self._seen is not None
        for metric in catalog.metrics():
            if self._seen.task in metric.tasks and metric.definitions[0].group in groups:
                for measurement in metric.measure(self._seen):
                    self.measurements.append(measurement)
                    self.events.measurement(measurement)

    def keep(self, artifacts: Path | None) -> None:
        """Copy the artifact for a user who asked for it, with its card and the spec that makes it again."""
        if artifacts is not None and self._candidate is not None:
            target = artifacts / folder_name(self.spec.variant.name)
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(self._candidate.files, target)
            write_card(target, self.report(None))

    def close(self) -> None:
        """End every child and remove the scratch folder."""
        for side in self._sides:
            side.close(grace=1)
        # Memory maps of outputs are dropped first, so that the files can go on every system.
        self._seen = None
        shutil.rmtree(self._scratch, ignore_errors=True)

    def report(self, failure: Failure | None) -> Report:
        """The report of what is known."""
        candidate = self._candidate
        return Report(
            experiment=self.spec.variant.name,
            baseline=self.spec.baseline.name,
            task=self._task or self.spec.task or "unknown",
            spec=self.spec.canonical(),
            status="failed" if failure else "succeeded",
            failure=failure,
            measurements=tuple(self.measurements),
            effects=candidate.effects if candidate else (),
            artifact=candidate.record.model_copy(update={"path": str(candidate.files)}) if candidate else None,
            canary=self.checked,
            environment=self.environment,
            notes=tuple(self.notes),
            reused=tuple(self.reused),
            stage_seconds=dict(self.events.stage_seconds),
            unpaired=not self.bench.paired,
        )


def _located(error: ExperimentError, side: pairing.Side) -> ExperimentError:
    """The same failure, naming the first layer or node that is not finite, where that was the failure."""
    if "nonfinite" not in error.failure.detail:
        return error
    where = side.call("locate").get("where")
    if where is None:
        return error
    named = error.failure.model_copy(
        update={
            "message": f"{error.failure.message}; the first is at {where}",
            "detail": {**error.failure.detail, "first": where},
        }
    )
    return ExperimentError.of(named)


def _outputs(folder: Path, pack: Pack) -> Outputs:
    def read(name: str) -> Any:
        path = folder / f"{name}.npy"
        return np.load(path, mmap_mode="r") if path.exists() else None

    targets = read("targets")
    return Outputs(
        logits=read("logits"),
        targets=targets if targets is not None else pack.targets(),
        token_log_probs=read("token_log_probs"),
        embeddings=read("embeddings"),
    )


def _folder_sha256(cache: Path, folder: Path) -> str:
    """Over everything that decides what a model answers: weights, configuration, tokenizer."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    kept = [n for n in names if n.endswith((".safetensors", ".json", ".txt", ".model"))]
    hashes = {
        name: remembered_sha256(cache, folder / name) if name.endswith(".safetensors") else sha256_file(folder / name)
        for name in kept
    }
    return digest(hashes)


def run_attempt(spec: ExperimentSpec, host: Host, *, out: Path, events_fd: int, cores: Sequence[int] = ()) -> Report:
    """Run one experiment for a supervisor: events to a descriptor, the report to ``out`` (whole or not at all)."""
    restrict(tuple(cores))
    events = Events(to_descriptor(events_fd))
    report = run_experiment(spec, host, events)
    write_json(out, report.model_dump_json())
    events.emit("report", report_path=str(out), fraction=1.0)
    return report


def run_study(
    spec: StudySpec,
    host: Host,
    *,
    on_event: Callable[[str, Event], None] = lambda name, event: None,
    artifacts: Path | None = None,
    paired: bool = True,
    requests: tuple[int, ...] = (),
) -> StudyReport:
    """Run all experiments of a study here, one after the other; a failed one does not stop the rest.

    Args:
        paired: as for :class:`Bench`.
        requests: as for :class:`Bench`.
        on_event: receives the experiment's name and each of its events.
        artifacts: folder that gets a copy of every finished artifact.
    """
    reports = []
    bench = Bench(paired=paired, requests=requests)
    experiments = spec.expand()
    for number, experiment in enumerate(experiments, 1):
        bench.more = number < len(experiments)
        name = experiment.variant.name

        def write(event: Event, name: str = name) -> None:
            on_event(name, event)

        events = Events(write)
        report = run_experiment(experiment, host, events, artifacts, bench)
        if report.status == "succeeded":
            events.emit("report", fraction=1.0)
        reports.append(report)
    study = StudyReport(
        name=spec.name, baseline=spec.baseline, spec=spec.model_dump(mode="json"), experiments=tuple(reports)
    )
    return study.model_copy(update={"verdict": verdict(study)})
