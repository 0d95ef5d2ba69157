"""What a user asks for: frozen models that validate the form, the API, the CLI and the worker alike.

:class:`StudySpec` is what people write; :meth:`StudySpec.expand` gives the :class:`ExperimentSpec` of each point.
:func:`parse` turns text into a spec and every error into a path and a sentence.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from experiments import catalog
from experiments.protocols import DatasetSource, Layout, ModelSource, Runtime, Task, Technique
from experiments.records import digest

if TYPE_CHECKING:
    AnyModel = ModelSource
    AnyDataset = DatasetSource
    AnyTechnique = Technique
    AnyRuntime = Runtime
    AnyLayout = Layout
else:
    AnyModel = catalog.union("model")
    AnyDataset = catalog.union("dataset")
    AnyTechnique = catalog.union("technique")
    AnyRuntime = catalog.union("runtime")
    AnyLayout = catalog.union("layout")

MAX_BYTES = 1_000_000
MAX_EXPERIMENTS = 1_000
#: Scalars, lists and mappings of a YAML text; 1,000 experiments of 50 fields each stay below.
MAX_PARTS = 200_000
#: As many problems are explained; whoever has more is helped by these already.
MAX_PROBLEMS = 100


def _kind(value: Any) -> Any:
    """A string abbreviates ``{kind: ...}``."""
    return {"kind": value} if isinstance(value, str) else value


def _name(value: str) -> str:
    value = value.strip()
    if not value:
        raise ValueError("a name can't be empty")
    if any(ord(c) < 32 for c in value):
        raise ValueError("a name can't hold control characters")
    return value


Name = Annotated[str, Field(max_length=200), AfterValidator(_name)]


class Spec(BaseModel):
    """Base: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Workload(Spec):
    """What is asked of each artifact while it is timed."""

    batch_sizes: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(
        default=(1, 8), min_length=1, max_length=8, description="Requests per call; tables show the first one."
    )
    sequence_length: int = Field(default=128, ge=1, le=131_072, description="Tokens per text (prompt tokens).")
    new_tokens: int = Field(default=32, ge=2, le=4096, description="Tokens generated per request.")
    min_seconds: float = Field(
        default=2.0, gt=0, le=3600, description="Seconds of timing per batch size and side (p99 needs 662 samples)."
    )
    min_samples: int = Field(default=20, ge=2, le=100_000, description="At least this many requests are timed.")

    @field_validator("batch_sizes")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise ValueError("batch sizes must differ from each other")
        return value


class Slo(Spec):
    """The service level a throughput must meet to count for cost."""

    latency_p50_ms: float | None = Field(default=None, gt=0)
    latency_p99_ms: float | None = Field(default=None, gt=0)


class Price(Spec):
    """Overrides the price table."""

    usd_per_hour: float = Field(gt=0, description="Price of one device for an hour.")
    source: str = Field(default="given in the spec", max_length=200)


class Resources(Spec):
    """What an attempt may use."""

    device: Literal["cpu", "cuda"] = "cpu"
    count: int | None = Field(default=None, ge=1, le=1024, description="Devices; default: what the layout needs.")
    timeout_s: int = Field(default=1800, ge=1, le=7 * 86_400)
    memory_mib: int | None = Field(default=None, ge=64, le=16 * 1024 * 1024)


class GateRule(Spec):
    """One condition of the gate."""

    experiment: Name
    metric: str
    vs: Literal["baseline"] | None = None
    max_drop: float | None = Field(default=None, ge=0)
    max_ratio: float | None = Field(default=None, gt=0)
    min_ratio: float | None = Field(default=None, gt=0)
    max: float | None = None
    min: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> GateRule:
        if all(v is None for v in (self.max_drop, self.max_ratio, self.min_ratio, self.max, self.min)):
            raise ValueError("a rule needs one of max_drop, max_ratio, min_ratio, max, min")
        return self


class Gate(Spec):
    """Rules that together say yes or no to CI."""

    rules: tuple[GateRule, ...] = Field(min_length=1, max_length=200)


def _describe_grid(schema: dict[str, Any]) -> None:
    """``grid`` is what people may write; it is gone once a study is expanded."""
    schema["properties"]["grid"] = {
        "type": "object",
        "additionalProperties": {"type": "array", "minItems": 1},
        "description": "Path in this experiment -> values, e.g. {recipe.0.amount: [0.3, 0.5]}; one experiment each.",
    }


class Variant(Spec):
    """One way to make and run the model: a recipe, a runtime, a layout."""

    model_config = ConfigDict(json_schema_extra=lambda schema: _describe_grid(schema))

    name: Name
    recipe: tuple[AnyTechnique, ...] = Field(default=(), max_length=16)
    runtime: Annotated[AnyRuntime, BeforeValidator(_kind, json_schema_input_type=Union[str, AnyRuntime])] = Field(  # noqa: UP007 - a runtime union
        default={"kind": "torch-eager"}, validate_default=True
    )
    layout: Annotated[AnyLayout, BeforeValidator(_kind, json_schema_input_type=Union[str, AnyLayout])] = Field(  # noqa: UP007
        default={"kind": "single"}, validate_default=True
    )
    resources: Resources | None = None

    @property
    def recipe_text(self) -> str:
        """E.g. 'int8-dynamic -> finetune', or 'as is'."""
        return " -> ".join(step.technique for step in self.recipe) or "as is"


class _Shared(Spec):
    """What all experiments of a study have in common."""

    schema_version: Literal[1] = 1
    name: Name
    model: AnyModel
    task: Task | None = Field(default=None, description="Default: what the model's architecture is for.")
    dataset: AnyDataset | None = None
    workload: Workload = Workload()
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    slo: Slo | None = None
    price: Price | None = None


class ExperimentSpec(_Shared):
    """One point on the chart, complete in itself: its variant beside its study's baseline."""

    variant: Variant
    baseline: Variant
    resources: Resources = Resources()

    @property
    def is_baseline(self) -> bool:
        """True for the study's baseline, whose attempt is the A/A."""
        return self.variant.name == self.baseline.name

    @property
    def devices(self) -> int:
        """Devices that an attempt leases."""
        if self.resources.count is not None:
            return self.resources.count
        return 1 if self.variant.layout.oversubscribe else self.variant.layout.world_size()

    def canonical(self) -> dict[str, Any]:
        """Plain data with every default filled in, for hashing and storage."""
        return self.model_dump(mode="json")

    def sha256(self) -> str:
        """Hash of the canonical form."""
        return digest(self.canonical())


class StudySpec(_Shared):
    """Experiments over one model with one baseline, workload and quality task."""

    baseline: Name
    experiments: tuple[Variant, ...] = Field(min_length=1, max_length=MAX_EXPERIMENTS)
    gate: Gate | None = None
    resources: Resources = Resources()
    priority: int = Field(default=50, ge=0, le=100)
    tags: tuple[Annotated[str, Field(max_length=60)], ...] = Field(default=(), max_length=50)
    labels: dict[str, str] = Field(default_factory=dict, description="Selectors of workers, e.g. {gpu: A100}.")

    @model_validator(mode="before")
    @classmethod
    def _expand_grids(cls, data: Any) -> Any:
        """``grid: {recipe.0.amount: [0.3, 0.5]}`` makes one experiment per combination, named by its values."""
        if not isinstance(data, dict) or not isinstance(data.get("experiments"), list | tuple):
            return data
        variants: list[Any] = []
        for index, variant in enumerate(data["experiments"]):
            if isinstance(variant, dict) and variant.get("grid"):
                variants.extend(_grid(variant, index))
            else:
                if isinstance(variant, dict):
                    variant = {k: v for k, v in variant.items() if k != "grid"}
                variants.append(variant)
            if len(variants) > MAX_EXPERIMENTS:
                raise ValueError(f"the study expands to more than {MAX_EXPERIMENTS:,} experiments")
        return {**data, "experiments": variants}

    @model_validator(mode="after")
    def _consistent(self) -> StudySpec:
        names = [variant.name for variant in self.experiments]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"experiments must have different names; twice: {', '.join(twice)}")
        if self.baseline not in names:
            close = catalog.nearest(self.baseline, names)
            hint = f"; did you mean {close!r}?" if close else f"; there are: {', '.join(names[:10])}"
            raise ValueError(f"baseline {self.baseline!r} is not one of the experiments{hint}")
        if self.gate:
            for rule in self.gate.rules:
                if rule.experiment not in names:
                    raise ValueError(f"gate rule names {rule.experiment!r}, which is not one of the experiments")
                if rule.metric not in catalog.definitions():
                    close = catalog.nearest(rule.metric, catalog.definitions())
                    raise ValueError(
                        f"gate rule names unknown metric {rule.metric!r}"
                        + (f"; did you mean {close!r}?" if close else "")
                    )
        return self

    def expand(self) -> tuple[ExperimentSpec, ...]:
        """The experiments, baseline first, else in the order written."""
        shared = {field: getattr(self, field) for field in _Shared.model_fields}
        baseline = next(v for v in self.experiments if v.name == self.baseline)
        ordered = [baseline, *(v for v in self.experiments if v is not baseline)]
        return tuple(
            ExperimentSpec(**shared, variant=v, baseline=baseline, resources=v.resources or self.resources)
            for v in ordered
        )


def _grid(variant: dict[str, Any], index: int) -> list[dict[str, Any]]:
    grid = variant["grid"]
    if not isinstance(grid, dict) or not all(isinstance(v, list | tuple) and v for v in grid.values()):
        raise ValueError(f"experiments.{index}.grid must map a path to a non-empty list of values")
    size = 1
    for values in grid.values():
        size *= len(values)
    if size > MAX_EXPERIMENTS:
        raise ValueError(f"experiments.{index}.grid expands to {size:,} experiments; at most {MAX_EXPERIMENTS:,}")
    base = {k: v for k, v in variant.items() if k != "grid"}
    made = []
    for combination in itertools.product(*grid.values()):
        point = json.loads(json.dumps(base))
        words = []
        for path, value in zip(grid, combination, strict=True):
            _set(point, path, value, index)
            words.append(f"{path.rsplit('.', 1)[-1]}={value}")
        point["name"] = f"{base.get('name', 'experiment')} {' '.join(words)}"
        made.append(point)
    return made


def _set(point: Any, path: str, value: Any, index: int) -> None:
    *parents, last = path.split(".")
    here = point
    try:
        for key in parents:
            here = here[int(key)] if isinstance(here, list) else here[key]
        if isinstance(here, list):
            here[int(last)] = value
        else:
            here[last] = value
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise ValueError(f"experiments.{index}.grid: there is no {path!r} in this experiment") from error


class Problem(Spec):
    """One error of a spec: where and what."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(ValueError):
    """A spec that can't be accepted, with every problem found."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


def parse(source: str | bytes | dict[str, Any], *, syntax: Literal["yaml", "json"] = "yaml") -> StudySpec:
    """A study from YAML or JSON text (at most 1 MB) or from plain data.

    Raises:
        SpecError: every problem with its path; never a stack trace.
    """
    data = source if isinstance(source, dict) else load(source, syntax=syntax)
    if not isinstance(data, dict):
        raise SpecError([Problem(path="", message="a spec must be a mapping of fields, starting with 'name:'")])
    if unstorable := _unstorable(data):
        raise SpecError(unstorable)
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        raise SpecError(explain(error)) from None


def load(source: str | bytes, *, syntax: Literal["yaml", "json"]) -> Any:
    """Plain data from YAML or JSON text of at most 1 MB; what it says is not looked at.

    Raises:
        SpecError: too long, or not readable as that syntax (line and column named).
    """
    if len(source) > MAX_BYTES:
        raise SpecError([Problem(path="", message=f"a spec may have at most {MAX_BYTES:,} bytes")])
    return _load(source, syntax)


def _unstorable(data: Any) -> list[Problem]:
    """Texts that JSON can say but that neither UTF-8 nor a database can hold: NUL and half surrogates."""
    found = []
    left: list[tuple[str, Any]] = [("", data)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            left += [(path, key) for key in value]
            left += [(f"{path}.{key}" if path else str(key), inside) for key, inside in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{path}.{index}", inside) for index, inside in enumerate(value)]
        elif isinstance(value, str) and ("\0" in value or any("\ud800" <= c <= "\udfff" for c in value)):
            found.append(Problem(path=_storable(path), message="NUL or a character that is not valid Unicode"))
    return found


def _storable(text: str) -> str:
    return text.replace("\0", "?").encode("utf-8", "replace").decode()


#: libyaml's parser where PyYAML was built with it: some five times faster.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Safe YAML without repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _load(source: str | bytes, syntax: Literal["yaml", "json"]) -> Any:
    try:
        text = source.decode("utf-8-sig") if isinstance(source, bytes) else source
        if syntax == "json":
            return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        _refuse_bombs(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - derived from SafeLoader
    except UnicodeDecodeError:
        message = "the spec is not UTF-8 text"
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        message = f"not valid YAML: {error.problem}{place}"
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        message = f"not valid {syntax.upper()}: {str(error)[:200] or type(error).__name__}"
    raise SpecError([Problem(path="", message=message)])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, unless it says one thing twice (Python would quietly take the last)."""
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"{key[:80]!r} is given twice")
        made[key] = value
    return made


def _no_number(name: str) -> None:
    """``NaN`` and ``Infinity``, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is not a number in JSON")


def _refuse_bombs(text: str) -> None:
    """Refuse, before anything is built, aliases (they can expand without limit) and more parts than a spec can have."""
    for count, event in enumerate(yaml.parse(text, Loader=_SafeLoader)):
        if isinstance(event, yaml.events.AliasEvent):
            mark: Any = event.start_mark
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not allowed in a spec", mark)
        if count > MAX_PARTS:
            raise yaml.YAMLError(f"it has more than {MAX_PARTS:,} parts")


def explain(error: ValidationError) -> list[Problem]:
    """Pydantic's errors as paths into what the user wrote and sentences that say how to mend them."""
    problems = []
    items = error.errors(include_url=False)
    for item in items[:MAX_PROBLEMS]:
        if item["type"] == "too_short" and any(_below(other["loc"], item["loc"]) for other in items):
            continue  # the list is too short only because its broken entries were not counted
        path = _path(item["loc"])
        context = item.get("ctx", {})
        given = item.get("input")
        match item["type"]:
            case "union_tag_invalid":
                choices = re.findall(r"'([^']*)'", str(context.get("expected_tags", "")))
                tag, field = str(context.get("tag")), str(context.get("discriminator", "")).strip("'")
                close = catalog.nearest(tag, choices)
                what = {"technique": "technique", "kind": path.rsplit(".", 1)[-1], "source": "source"}.get(field, field)
                message = f"unknown {what} {tag[:80]!r}" + (
                    f"; did you mean {close!r}?" if close else f"; there are: {', '.join(choices)}"
                )
                path = f"{path}.{field}" if field != "kind" else path
            case "union_tag_not_found":
                field = str(context.get("discriminator", "")).strip("'")
                message = f"say which one with {field!r}"
            case "extra_forbidden":
                message = "unknown field" + _field_hint(path, given)
            case "missing":
                message = "this field is required"
            case "literal_error":
                expected = str(context.get("expected", ""))
                choices = re.findall(r"'([^']*)'", expected) or [expected]
                close = catalog.nearest(str(given), choices)
                message = f"{str(given)[:80]!r} is not {'one of ' if choices[1:] else ''}{', '.join(choices)}" + (
                    f"; did you mean {close!r}?" if close else ""
                )
            case "value_error":
                message = str(context.get("error", item["msg"]))
            case _:
                message = item["msg"]
                if isinstance(given, int | float | str) and not isinstance(given, bool):
                    message += f" (given: {str(given)[:80]!r})"
        problems.append(Problem(path=path, message=message))
    if (more := error.error_count() - MAX_PROBLEMS) > 0:
        problems.append(Problem(path="", message=f"and {more:,} more problems"))
    return problems


def _below(loc: tuple[int | str, ...], parent: tuple[int | str, ...]) -> bool:
    return len(loc) > len(parent) and loc[: len(parent)] == parent


def _path(loc: tuple[int | str, ...]) -> str:
    """The path as the user wrote it: pydantic's union tags are left out."""
    parts: list[str] = []
    for part in loc:
        tagged = parts and (parts[-1] in {"model", "dataset", "runtime", "layout"} or _is_step(parts))
        if isinstance(part, str) and tagged and any(part in catalog.plugins(k) for k in _PLUGIN_KINDS):
            continue
        if isinstance(part, str) and part.startswith("function-"):
            continue
        parts.append(str(part))
    return ".".join(parts)


_PLUGIN_KINDS: tuple[catalog.Kind, ...] = ("model", "dataset", "technique", "runtime", "layout")


def _is_step(parts: list[str]) -> bool:
    return len(parts) >= 2 and parts[-2] == "recipe" and parts[-1].isdigit()


def _field_hint(path: str, given: Any) -> str:
    last = path.rsplit(".", 1)[-1]
    known = {*StudySpec.model_fields, *Variant.model_fields, *Workload.model_fields, *Resources.model_fields, "grid"}
    for kind in _PLUGIN_KINDS:
        for config in catalog.plugins(kind).values():
            known.update(config.model_fields)
    close = catalog.nearest(last, known - {last})
    return f"; did you mean {close!r}?" if close else ""
