"""The six kinds of plugin and what they are handed. Torch is never imported here.

A plugin is a frozen config class (its fields are what a user may set; form, API schema and catalogue page follow
from them) with the methods of its kind. Plugins import torch inside functions and never each other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict
from pydantic import Field as PydanticField

from experiments.records import ExperimentError, FailureKind, Label, Measurement, StepEffect

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from experiments.records import ArtifactRecord, Ceilings, DeviceFacts, Report
    from experiments.spec import ExperimentSpec

Task = Literal["text-classification", "text-generation", "feature-extraction", "image-classification"]
TASKS: tuple[Task, ...] = ("text-classification", "text-generation", "feature-extraction", "image-classification")
Form = Literal["torch", "onnx"]
DeviceKind = Literal["cpu", "cuda"]
Use = Literal["train", "calibration"]
#: More rows than any split has: what is learnt from is not cut by the limit of what is judged.
ALL_ROWS = 10_000_000


@dataclass(frozen=True)
class Host:
    """Where the engine may read and write on this machine.

    Attributes:
        cache: content-addressed cache shared by all experiments of this user (models, data, artifacts, packs).
        path_roots: folders below which ``source: path`` may point; None = anywhere (the CLI).
        offline: never contact a hub.
        tell: receives one line of progress text and the fraction done (None if unknown) of a long preparation.
    """

    cache: Path
    path_roots: tuple[Path, ...] | None = None
    offline: bool = False
    tell: Callable[[str, float | None], None] = field(default=lambda message, fraction: None)


class Plugin(BaseModel):
    """Base of all config classes: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    origin: ClassVar[str] = ""  # paper or definition the method comes from


@dataclass(frozen=True)
class ModelFacts:
    """What can be known of a model without torch: config.json and weight headers.

    ``parameters`` counts tied weights once. ``weights_bytes`` is the size of the weight files on disk.
    """

    name: str
    model_type: str
    architectures: tuple[str, ...]
    task: Task | None
    parameters: int
    dtype: str
    weights_bytes: int
    max_length: int | None = None
    hidden_size: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocab_size: int | None = None
    labels: tuple[str, ...] = ()
    image_size: tuple[int, int, int] | None = None  # channels, height, width
    tied_embeddings: bool = False
    quantized: str | None = None
    revision: str | None = None
    notes: tuple[str, ...] = ()


class ModelSource(Plugin):
    """Where a model comes from. ``source`` is the discriminator."""

    source: str

    def display(self) -> str:
        """Short name for people."""
        raise NotImplementedError

    def inspect(self, host: Host) -> ModelFacts | None:
        """Torch-free facts, or None if they are not known before a fetch (e.g. an uncached hub model).

        Raises:
            ExperimentError: ``bad_model`` if what is there can never run; the message names file and reason.
        """
        raise NotImplementedError

    def ready(self, host: Host) -> Path | None:
        """The folder that :meth:`fetch` would give, if nothing is left to do for it; torch-free and offline."""
        return None

    def fetch(self, host: Host) -> Path:
        """A local Hugging Face folder (config.json, *.safetensors, tokenizer or image processor).

        May download, convert or train once (cached, with progress through ``host.tell``); may import torch.

        Raises:
            ExperimentError: ``bad_model`` or ``download``.
        """
        raise NotImplementedError

    def licence(self, folder: Path) -> str | None:
        """The licence of the model in its fetched ``folder``, as an SPDX name or in words; None if nothing says it."""
        from experiments.parts.licence import licence_of

        return licence_of(folder)


@dataclass(frozen=True)
class Examples:
    """A loaded dataset split: parallel columns of equal length, in file order after any seeded shuffle.

    ``texts``: text tasks. ``pairs``: second text of a pair (None if single). ``images``: uint8 or float array
    (N, H, W) or (N, H, W, C). ``labels``: class names as strings, one per row; ``scores``: float targets (STS).
    ``sha256`` is over the contents, so equal rows have equal hashes wherever they came from.
    """

    name: str
    sha256: str
    texts: tuple[str, ...] = ()
    pairs: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    scores: tuple[float, ...] | None = None
    images: npt.NDArray[Any] | None = None
    total: int = 0  # rows before `limit`
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts) if self.images is None else len(self.images)


class DatasetSource(Plugin):
    """Where data comes from. ``source`` is the discriminator."""

    source: str
    split: str = "test"
    limit: int | None = None
    train_split: str | None = PydanticField(default=None, description="Rows that training steps may learn from.")
    calibration_split: str | None = PydanticField(default=None, description="Rows that quantizers may calibrate on.")

    def display(self) -> str:
        """Short name for people."""
        raise NotImplementedError

    def load(self, host: Host, task: Task, split: str | None = None, limit: int | None = None) -> Examples:
        """The rows of ``split`` (default: ``self.split``), at most ``limit`` (default: ``self.limit``).

        Torch-free. Raises:
            ExperimentError: ``bad_dataset`` (file, line or row, and column named) or ``download``.
        """
        raise NotImplementedError

    def peek(self, host: Host, task: Task, split: str | None = None) -> Examples | None:
        """What :meth:`load` would give, if that is quick and needs no network; None if not. Raises as ``load``."""
        return None

    def split_for(self, use: Use) -> str | None:
        """The split whose rows a technique may learn from or calibrate on; None if none was named.

        Calibration takes the training rows where it has none of its own.
        """
        named = self.train_split or self.usual_train_split()
        return self.calibration_split or named if use == "calibration" else named

    def usual_train_split(self) -> str | None:
        """The training split of data whose splits are known beforehand and never overlap, else None."""
        return None

    def stamp(self, host: Host) -> str:
        """Changes whenever :meth:`peek` may answer differently; quick, never raises."""
        return ""


@dataclass(frozen=True)
class Ask:
    """One compatibility question, answered without torch at submission and again by the worker."""

    task: Task
    device: DeviceKind
    runtime: Runtime
    recipe: tuple[Technique, ...] = ()
    model: ModelFacts | None = None
    devices: tuple[DeviceFacts, ...] = ()  # of this kind, on the workers that are known


class Tell(Protocol):
    """Says how far a long step is."""

    def __call__(self, fraction: float, message: str = "", seconds_left: float | None = None) -> None:
        """``fraction`` (0 to 1) of the build is done; ``message`` may tell loss and step."""


class Rows(Protocol):
    """Gives rows to learn from or to calibrate on."""

    def __call__(self, use: Use, limit: int | None = None) -> Examples:
        """At most ``limit`` rows, the first ones; raises ``bad_dataset`` if there are none."""


def _silent(fraction: float, message: str = "", seconds_left: float | None = None) -> None:
    """Tell nobody."""


def no_rows(use: Use, limit: int | None = None) -> Examples:
    """Raise ``bad_dataset``: there are no rows for ``use``."""
    raise ExperimentError(
        FailureKind.BAD_DATASET,
        f"there are no {use} rows: the experiment has no dataset, or its dataset names no split for them",
        fix=f"Set dataset.{use}_split.",
        field=f"dataset.{use}_split",
    )


def _not_kept(kind: str, key: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-"))
    make(folder)
    return folder


@dataclass
class BuildContext:
    """What a technique or a runtime gets while an artifact is built.

    Attributes:
        source: the Hugging Face folder that was loaded.
        work: scratch folder, removed afterwards.
        log: one line to the experiment's log.
        progress: how far this build is; see :class:`Tell`.
        probe: real inputs (name -> array, as for ``Session.forward``) to try a converted graph with; where absent,
            seeded synthetic ones are used.
        rows: the rows to learn from or to calibrate on (never among those that quality is judged on), at most
            ``limit``. Raises ``bad_dataset`` if there are none.
        remember: ``remember(kind, key, make)`` gives a folder that ``make(folder)`` filled once for this state of the
            model: the weights, all steps so far, data, versions and seed are part of its address. For what is dear
            and used by several experiments (calibration statistics, sensitivities); the report names it when reused.
        checkpoints: a folder that outlives a killed attempt, for a training step to go on from; None: keep none.
        module: gives the torch module that was exported, for ONNX steps that need to look at it (loads torch).
        masked: an earlier step set weights to zero: a training step must leave those at zero.
        through: the quantizer that a training step must learn to live with (it is applied right after the training).
    """

    task: Task
    device: DeviceKind
    facts: ModelFacts
    source: Path
    work: Path
    seed: int
    threads: int
    sequence_length: int
    isa: tuple[str, ...] = ()
    log: Callable[[str], None] = print
    progress: Tell = _silent
    probe: Mapping[str, npt.NDArray[Any]] | None = None
    rows: Rows = no_rows
    remember: Callable[[str, Mapping[str, Any], Callable[[Path], None]], Path] = _not_kept
    checkpoints: Path | None = None
    module: Callable[[], Any] | None = None
    masked: bool = False
    through: Technique | None = None


@dataclass(frozen=True)
class Textbook:
    """What the textbook claims, to stand beside what was measured."""

    latency: str = ""
    size: str = ""
    quality: str = ""
    speedup: tuple[float, float] | None = None  # times faster than the baseline, from .. to
    shrink: tuple[float, float] | None = None  # times smaller on disk, from .. to
    loss: tuple[float, float] | None = None  # of the task score, as a share of it, from .. to


Aspect = Literal["latency", "size", "quality"]


class Technique(Plugin):
    """One step of a recipe. ``technique`` is the discriminator.

    A technique serves the torch form (``apply_torch`` changes the module in place or returns a new one), the ONNX
    form (``apply_onnx`` reads one .onnx file and writes another), or both; ``forms`` says which. With an ONNX
    runtime, torch steps run before the export and ONNX steps after it.
    """

    technique: str

    forms: ClassVar[frozenset[Form]] = frozenset()
    tasks: ClassVar[frozenset[str]] = frozenset(TASKS)
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    label: ClassVar[Label] = Label.DENSE
    quantizes: ClassVar[bool] = False
    makes: ClassVar[str | None] = None  # number format of the weights it makes, by torch's name
    lossless: ClassVar[bool] = False  # outputs equal the source within the float tolerance
    sets_number_format: ClassVar[bool] = False  # at most one such step in a recipe (parts/number_format.py)
    alters: ClassVar[bool] = False  # the model is meant to answer differently afterwards: pruned, trained
    learns_rounding: ClassVar[bool] = False  # may follow a quantizer: it then trains through that one's rounding
    shared: ClassVar[bool] = False  # dear: its result is kept for every recipe that begins alike
    libraries: ClassVar[tuple[str, ...]] = ()  # distributions besides the runtime's that decide what it makes
    textbook: ClassVar[Textbook] = Textbook()
    family: ClassVar[str | None] = None  # one of catalog.FAMILIES; None: told by its name and what it makes

    def refuse(self, ask: Ask) -> str | None:
        """Why this step can't be done in this experiment (one sentence, what to choose instead), or None."""
        return None

    def needs(self) -> frozenset[Use]:
        """The rows that this step can't do without."""
        return frozenset()

    def must_be_last(self) -> str | None:
        """Why nothing may follow this step in a recipe (a clause after 'because'), or None."""
        return None

    def valid(self, facts: ModelFacts) -> dict[str, Any]:
        """Field -> the values that suit this model: a list, or ``{"min": .., "max": ..}``; torch-free."""
        return {}

    def shortfall(self, aspect: Aspect, report: Report) -> str | None:
        """Why the textbook's claim of this aspect can fail where ``report`` was made (one sentence), or None.

        Asked when a measured number misses the claim: instruction sets, kernels, labels and effects are in the report.
        """
        return None

    def apply_torch(self, module: Any, context: BuildContext) -> tuple[Any, StepEffect]:
        """Apply to a ``torch.nn.Module``; raises ``no_effect`` if nothing changed."""
        raise NotImplementedError

    def apply_onnx(self, source: Path, target: Path, context: BuildContext) -> StepEffect:
        """Read the ONNX file ``source``, write ``target``; raises ``no_effect`` if nothing changed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Generated:
    """One greedy generation, timed per token.

    ``tokens``: (batch, n_out) int64. ``times_ns``: (n_out,) monotonic time at which each token was ready;
    ``started_ns``: monotonic time at which the request was scheduled.
    """

    tokens: npt.NDArray[Any]
    times_ns: tuple[int, ...]
    started_ns: int


class Session(Protocol):
    """An artifact loaded in a measured process. Arrays in, arrays out; the runtime hides its own tensors."""

    def forward(self, inputs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """Logits (batch, classes), (batch, length, vocabulary), or hidden states (batch, length, width)."""

    def generate(self, input_ids: npt.NDArray[np.int64], new_tokens: int) -> Generated:
        """Greedy decoding with a KV cache of exactly ``new_tokens`` tokens; (batch, length) prompts, no padding."""

    def weights_bytes(self) -> int | None:
        """Bytes of unique weight storages in memory, or None if the runtime can't tell."""

    def proof(self) -> dict[str, Any]:
        """Which device or execution provider really ran, with node counts where known.

        Raises:
            ExperimentError: ``fallback`` if it is not the one that was asked for.
        """

    def first_non_finite(self, inputs: Mapping[str, npt.NDArray[Any]]) -> str | None:
        """Where NaN or infinity first appears for ``inputs``: the layer or node by name, or None if nowhere.

        Slow (every intermediate value is looked at): called only when a canary has failed, to name the cause.
        """

    def compilation(self) -> dict[str, float]:
        """What this process has compiled so far for the shapes it met; empty for a runtime that does not compile.

        ``compile_s``, ``compilations``, ``recompiles``, ``graph_breaks``.
        """

    def memory(self) -> dict[str, int | None]:
        """Device memory peaks in bytes: torch_peak_allocated, torch_peak_reserved (None where not applicable)."""


@runtime_checkable
class AdapterSession(Session, Protocol):
    """A session that may hold several adapters on one base model."""

    def adapters(self) -> tuple[str, ...]:
        """The adapters that can be switched to; empty if there are none, or if they can't be switched here."""

    def use_adapter(self, name: str) -> None:
        """Let the adapter ``name`` answer from now on."""

    def forward_mixed(self, inputs: Mapping[str, npt.NDArray[Any]], names: Sequence[str]) -> npt.NDArray[np.float32]:
        """As ``forward``, each row through the adapter that ``names`` gives for it."""


class Runtime(Plugin):
    """What runs an artifact. ``kind`` is the discriminator."""

    kind: str

    form: ClassVar[Form] = "torch"
    tasks: ClassVar[frozenset[str]] = frozenset(TASKS)
    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})
    imports_torch: ClassVar[bool] = True
    fuses: ClassVar[bool] = False  # joins a torch module's operators: answers agree within the number format only

    def refuse(self, ask: Ask) -> str | None:
        """Why this runtime can't serve the question, or None."""
        return None

    def libraries(self) -> tuple[str, ...]:
        """Distributions whose versions belong to the fingerprint."""
        return ()

    def save(self, module: Any, folder: Path, context: BuildContext, steps: Sequence[Technique]) -> None:
        """Write the deployable files of ``module`` into ``folder``.

        ``steps`` are those still to be applied in this runtime's own form (ONNX steps after an export). What is
        written depends on the module alone; settings of the runtime act in :meth:`finish` and :meth:`open`, so that
        one export serves them all.
        """
        raise NotImplementedError

    def finish(self, folder: Path, context: BuildContext) -> tuple[str, ...]:
        """Last step after all ONNX steps: check that the result loads and runs, and write its card.

        Returns:
            What a reader of the report should know of it, in sentences.

        Raises:
            ExperimentError: ``bad_model`` ('result does not load') or ``canary`` (non-finite outputs, node named).
        """
        return ()

    def open(self, folder: Path, device: DeviceKind, threads: int) -> Session:
        """Load the artifact in a fresh process.

        Raises:
            ExperimentError: ``bad_model`` if it does not load, ``fallback`` if the device is not there.
        """
        raise NotImplementedError


class Layout(Plugin):
    """How a model lies over devices. ``kind`` is the discriminator."""

    kind: str
    oversubscribe: bool = PydanticField(default=False, description="Allow more ranks than devices.")

    def world_size(self) -> int:
        """Number of ranks, hence of devices unless oversubscribed."""
        raise NotImplementedError

    def refuse(self, ask: Ask) -> str | None:
        """Why this layout can't serve the question, or None."""
        return None


@dataclass(frozen=True)
class MetricDefinition:
    """What a metric name means; direction is data and drives colour, Pareto and gates."""

    name: str
    title: str
    unit: str
    higher_is_better: bool | None
    definition: str
    source: str = ""
    group: Literal["latency", "memory", "size", "quality", "fidelity", "cost", "limit"] = "latency"


@dataclass(frozen=True)
class Block:
    """Timed closed-loop requests of one process: those of one side in one round. Times in nanoseconds.

    ``pair`` is the round; baseline and candidate of a round were timed in turn, each round with fresh processes.
    ``ttft_ns`` and ``token_gaps_ns`` are filled for generation only (one ttft a request; all gaps in order).
    """

    side: Literal["candidate", "baseline"]
    pair: int
    batch_size: int
    latency_ns: tuple[int, ...]
    ttft_ns: tuple[int, ...] = ()
    token_gaps_ns: tuple[int, ...] = ()
    tokens_out: int = 0
    wall_ns: int = 0


@dataclass(frozen=True)
class Outputs:
    """Outputs of one artifact over the evaluation pack, memory-mapped.

    Classification: ``logits`` (N, classes), ``targets`` (N,) int64. Generation: ``logits`` (T, vocabulary) of the
    first T <= 2,048 scored tokens, ``targets`` (T,), and ``token_log_probs`` (all scored tokens,) in nats.
    Feature extraction: ``embeddings`` (N, width); with score pairs all first texts, then all second ones (2N, width),
    and ``targets`` (N,) float64 scores.
    """

    logits: npt.NDArray[Any] | None = None
    targets: npt.NDArray[Any] | None = None
    token_log_probs: npt.NDArray[Any] | None = None
    embeddings: npt.NDArray[Any] | None = None


@dataclass
class Observations:
    """All that was seen of one experiment; metrics turn it into measurements, purely and without torch.

    ``candidate`` and ``baseline`` outputs are over the same pack. ``pack`` is the manifest of the evaluation pack
    (protocol, hashes, n_bytes, n_tokens, class names). ``memory`` is the measured process's own reading.
    ``compilation`` is what the candidate's first process compiled, from nothing (``Session.compilation``).
    ``adapters`` is what several adapters on one base cost and answer (``parts.adapter_readings``).
    ``work`` = {"flops_per_sample": .., "flops_per_token": .., "bytes_per_step": .., "zeros": .. (zero weights)} where
    known. ``devices`` are the leased ones, for the price.
    """

    spec: ExperimentSpec
    task: Task
    is_baseline: bool
    artifact: ArtifactRecord
    baseline_artifact: ArtifactRecord | None
    blocks: tuple[Block, ...] = ()
    memory: dict[str, Any] = field(default_factory=dict)
    baseline_memory: dict[str, Any] = field(default_factory=dict)
    compilation: dict[str, float] = field(default_factory=dict)
    adapters: dict[str, Any] = field(default_factory=dict)
    weights_bytes: int | None = None
    candidate: Outputs = field(default_factory=Outputs)
    baseline: Outputs | None = None
    pack: dict[str, Any] = field(default_factory=dict)
    ceilings: Ceilings | None = None
    work: dict[str, float] = field(default_factory=dict)
    dtype: str = "float32"
    devices: tuple[DeviceFacts, ...] = ()

    def latencies(self, batch_size: int, side: str = "candidate") -> list[int]:
        """All latency samples in nanoseconds of one side at one batch size."""
        return [t for b in self.blocks if b.batch_size == batch_size and b.side == side for t in b.latency_ns]

    def pairs(self, batch_size: int) -> Iterator[tuple[Block, Block]]:
        """(baseline block, candidate block) of each complete pair, in order."""
        by_pair: dict[int, dict[str, Block]] = {}
        for block in self.blocks:
            if block.batch_size == batch_size:
                by_pair.setdefault(block.pair, {})[block.side] = block
        for _, sides in sorted(by_pair.items()):
            if "baseline" in sides and "candidate" in sides:
                yield sides["baseline"], sides["candidate"]


class Metric:
    """A file of related metrics: their definitions and the function that makes them from observations."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = ()
    tasks: ClassVar[frozenset[str]] = frozenset(TASKS)

    def measure(self, seen: Observations) -> list[Measurement]:
        """Measurements of this metric; a missing number says why instead of being left out silently."""
        raise NotImplementedError
