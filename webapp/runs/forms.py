"""The form of a new study, generated from the catalogue, and the study spec that it says.

The form has no rules of its own: what was typed becomes plain data, ``experiments.spec`` judges it, and each problem
goes back to the field that made it. The same data is what 'Show the YAML' shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from experiments import catalog
from experiments.protocols import TASKS
from experiments.spec import Price, Problem, Resources, Slo, SpecError, StudySpec, Workload, parse
from webapp.runs import chains, refill, schema_fields
from webapp.runs.chains import Chain, Posted
from webapp.runs.pairs import AS_IS, Pair, default_runtime
from webapp.runs.refill import schema_of
from webapp.runs.schema_fields import SchemaField

#: Chosen on a fresh form: a real model that needs no account, with its own data, and enough variants to compare.
FIRST_STUDY: dict[str, Any] = {
    "name": "Reviews classifier, smaller",
    "model": {"source": "demo", "name": "minilm-reviews"},
    "dataset": {"source": "demo", "name": "reviews", "limit": 500},
}

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SourceChoice:
    """One source of a model or of data, with its own fields."""

    value: str
    title: str
    summary: str
    fields: tuple[SchemaField, ...]


@dataclass(frozen=True)
class PairChoice:
    """A technique on a runtime: one box to tick."""

    value: str
    runtime: str
    title: str
    checked: bool

    @property
    def id(self) -> str:
        """For the label and the place of its refusal."""
        return "p-" + self.value.replace("|", "-on-")


@dataclass(frozen=True)
class TechniqueChoice:
    """A card: what the technique is, its options, and the runtimes it may be tried on."""

    name: str
    title: str
    summary: str
    promise: str
    fields: tuple[SchemaField, ...]
    pairs: tuple[PairChoice, ...]


class StudyForm:
    """The form as it was filled in (``posted``), or as it first appears."""

    def __init__(self, posted: Mapping[str, Any] | None = None, *, initial: dict[str, Any] | None = None) -> None:
        self.bound = posted is not None
        self._pairs: list[str] = []
        if posted is not None:
            getlist = getattr(posted, "getlist", lambda name: [posted[name]] if name in posted else [])
            self._pairs = list(dict.fromkeys(getlist("pair")))
            self._all = Posted.of(posted)
        else:
            self._all, self._pairs = refill.filled_from(initial or FIRST_STUDY)
        self._posted = self._all.values
        self.problems: list[Problem] = []
        self._catalogue = catalog.describe()
        self._errors: dict[str, str] = {}
        self._hints: dict[str, Any] = {}
        self.focus, self.said = "", ""

    def edit(self, what: str) -> None:
        """Change the recipes as a button asks; see :meth:`webapp.runs.chains.Posted.edit`."""
        self.focus, self.said = self._all.edit(what)

    # ------------------------------------------------------------------------------------------------ questions

    @property
    def name(self) -> SchemaField:
        """The study's name."""
        return self._filled(SchemaField("name", "name", "Name", "text", required=True))

    @property
    def task(self) -> SchemaField:
        """The task, or what the model is for."""
        return self._filled(
            SchemaField("task", "task", "Task", "choice", choices=TASKS, help="Empty: what the model was made for.")
        )

    @property
    def model_source(self) -> str:
        """The chosen source of the model."""
        return self._posted.get("model.source", "demo")

    @property
    def dataset_source(self) -> str:
        """The chosen source of data; empty for none."""
        return self._posted.get("dataset.source", "demo")

    @property
    def models(self) -> list[SourceChoice]:
        """Sources of models."""
        return self._sources("models", "model")

    @property
    def datasets(self) -> list[SourceChoice]:
        """Sources of data."""
        return self._sources("datasets", "dataset")

    @property
    def workload(self) -> list[SchemaField]:
        """What is asked of each artifact while it is timed."""
        return self._group(Workload.model_json_schema(), "workload", "workload")

    @property
    def more(self) -> list[SchemaField]:
        """What most studies leave alone."""
        seed = SchemaField("seed", "seed", "Seed", "integer", default=0, minimum=0, help="Same seed, same quality.")
        priority = SchemaField(
            "priority", "priority", "Priority", "integer", default=50, minimum=0, maximum=100, help="Higher goes first."
        )
        return [
            self._filled(seed),
            self._filled(priority),
            *self._group(Resources.model_json_schema(), "resources", "resources"),
            *self._group(Slo.model_json_schema(), "slo", "slo"),
            *self._group(Price.model_json_schema(), "price", "price"),
        ]

    @property
    def runtimes(self) -> list[tuple[str, str]]:
        """Names and titles of the runtimes, the usual baseline first."""
        rows = [(row["name"], row["title"]) for row in self._catalogue["runtimes"]]
        usual = default_runtime()
        return sorted(rows, key=lambda row: row[0] != usual)

    @property
    def baseline_runtime(self) -> str:
        """Where the baseline runs."""
        return self._posted.get("baseline_runtime") or default_runtime()

    @property
    def baseline_name(self) -> SchemaField:
        """What the baseline is called."""
        return self._filled(SchemaField("baseline_name", "baseline_name", "Called", "text", default=AS_IS))

    @property
    def techniques(self) -> list[TechniqueChoice]:
        """The cards: first the model as it is, then every technique."""
        as_is = TechniqueChoice(
            "",
            "As it is",
            "The model unchanged. On its runtime it is the baseline; on another it shows what the runtime alone does.",
            "",
            (),
            tuple(self._pair(None, runtime, title) for runtime, title in self.runtimes),
        )
        cards = [as_is]
        for row in self._catalogue["techniques"]:
            promise = row.get("textbook") or {}
            cards.append(
                TechniqueChoice(
                    row["name"],
                    row["title"],
                    row["summary"],
                    "; ".join(part for part in (promise.get("size"), promise.get("latency")) if part),
                    tuple(
                        self._hinted(field)
                        for field in self._group(row["schema"], f"technique.{row['name']}", f"technique.{row['name']}")
                    ),
                    tuple(self._pair(row["name"], runtime, title) for runtime, title in self.runtimes),
                )
            )
        return cards

    @property
    def families(self) -> list[tuple[str, list[TechniqueChoice], bool]]:
        """The cards by family: its title, its cards, and whether one of them is ticked."""
        grouped: dict[str, list[TechniqueChoice]] = {"": self.techniques[:1]}
        family = {row["name"]: row["family"] for row in self._catalogue["techniques"]}
        for card in self.techniques[1:]:
            grouped.setdefault(family[card.name], []).append(card)
        order = ["", *catalog.FAMILIES]
        return [
            (
                catalog.FAMILIES.get(name, ""),
                grouped[name],
                any(pair.checked for card in grouped[name] for pair in card.pairs),
            )
            for name in sorted(grouped, key=order.index)
        ]

    @property
    def choices(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Techniques of a step by family: name and title."""
        return [(title, [(c.name, c.title) for c in cards]) for title, cards, _ in self.families if title]

    @property
    def chains(self) -> list[Chain]:
        """Experiments with recipes of their own, as they were filled in."""
        return chains.read(self._all, self._filled, self._hinted, self._errors)

    @property
    def runtime_options(self) -> list[tuple[str, list[SchemaField]]]:
        """Runtimes that have options, with their fields."""
        every = (
            (row["title"], self._group(row["schema"], f"runtime.{row['name']}", f"runtime.{row['name']}"))
            for row in self._catalogue["runtimes"]
        )
        return [(title, fields) for title, fields in every if fields]

    # -------------------------------------------------------------------------------------------------- answers

    @property
    def pairs(self) -> list[Pair]:
        """What was ticked, the baseline first and always there."""
        baseline = Pair(None, self.baseline_runtime)
        ticked = [Pair.of(value) for value in self._pairs]
        return [baseline, *(pair for pair in ticked if pair != baseline)]

    def data(self, pairs: list[Pair] | None = None, *, with_chains: bool = True) -> dict[str, Any]:
        """The study as plain data, written as a person would: defaults are left out."""
        pairs = self.pairs if pairs is None else pairs
        data: dict[str, Any] = {"schema_version": 1, "name": self._posted.get("name", "").strip()}
        data["model"] = self._source("models", "model", self.model_source)
        if task := self._posted.get("task", ""):
            data["task"] = task
        if self.dataset_source:
            data["dataset"] = self._source("datasets", "dataset", self.dataset_source)
        if workload := _given(self.workload, self._posted):
            data["workload"] = workload
        data["baseline"] = self._name(Pair(None, self.baseline_runtime))
        data["experiments"] = [self.variant(pair) for pair in pairs]
        if with_chains:
            taken = {variant["name"] for variant in data["experiments"]}
            data["experiments"] += [self._chained(chain, taken) for chain in self.chains]
        for field in self.more:
            value = schema_fields.parse(field, self._posted)
            if value is None or value == field.default:
                continue
            head, _, tail = field.name.partition(".")
            if tail:
                data.setdefault(head, {})[tail] = value
            else:
                data[head] = value
        return data

    def variant(self, pair: Pair) -> dict[str, Any]:
        """One experiment of the study."""
        variant: dict[str, Any] = {"name": self._name(pair)}
        if pair.technique is not None:
            variant["recipe"] = [{"technique": pair.technique, **self._options("technique", pair.technique)}]
        options = self._options("runtime", pair.runtime)
        if options:
            variant["runtime"] = {"kind": pair.runtime, **options}
        elif pair.runtime != default_runtime():
            variant["runtime"] = pair.runtime
        return variant

    def _name(self, pair: Pair) -> str:
        """Name of a box's experiment; the baseline may have one of its own."""
        own = self.baseline_name.text.strip() if pair == Pair(None, self.baseline_runtime) else ""
        return own or pair.name(self.baseline_runtime)

    def _chained(self, chain: Chain, taken: set[str]) -> dict[str, Any]:
        """The experiment of a chain; one without a name of its own is named after its steps, once."""
        usual = "-".join(
            [str(chain.name.default), *([] if chain.runtime == self.baseline_runtime else [chain.runtime])]
        )
        name = chain.name.text.strip() or next(
            candidate
            for n in range(1, len(taken) + 2)
            if (candidate := usual if n == 1 else f"{usual}-{n}") not in taken
        )
        taken.add(name)
        steps = [{"technique": step.technique, **_given(step.fields, self._posted)} for step in chain.steps]
        variant: dict[str, Any] = {"name": name, **({"recipe": steps} if steps else {})}
        options = self._options("runtime", chain.runtime)
        if options:
            variant["runtime"] = {"kind": chain.runtime, **options}
        elif chain.runtime != default_runtime():
            variant["runtime"] = chain.runtime
        return variant

    def yaml(self) -> str:
        """The study as the YAML that the command line takes."""
        return yaml.safe_dump(self.data(), sort_keys=False, allow_unicode=True, width=100)

    def study(self) -> StudySpec | None:
        """The study, or None with ``problems`` filled and each one at its field."""
        try:
            return parse(self.data())
        except SpecError as error:
            self.blame(error.problems)
            return None

    def blame(self, problems: list[Problem]) -> None:
        """Put each problem at the field that made it; ``unplaced`` are those that no field made."""
        self.problems = [*self.problems, *problems]
        for problem in problems:
            path = self._field_path(problem.path)
            if path is not None:
                self._errors.setdefault(path, problem.message)

    def note(self, path: str, message: str) -> None:
        """Say at its field why one experiment of the study can't be done; the others can."""
        place = self._field_path(path)
        if place is not None:
            self._errors.setdefault(place, message)

    def hint(self, path: str, valid: Any) -> None:
        """Offer at its field the values that suit the chosen model."""
        place = self._field_path(path)
        if place is not None:
            self._hints[place] = valid

    def hint_technique(self, technique: str, option: str, valid: Any) -> None:
        """Offer at an option of a technique's card the values that suit the chosen model."""
        self._hints[f"technique.{technique}.{option}"] = valid

    @property
    def hinted(self) -> list[SchemaField]:
        """The fields for which there is such an offer."""
        options = [f for card in self.techniques for f in card.fields]
        steps = [f for chain in self.chains for step in chain.steps for f in step.fields]
        return [field for field in (*options, *steps) if field.hint]

    @property
    def unplaced(self) -> list[Problem]:
        """Problems that belong to no single field."""
        known = {field.path for field in self.every_field()}
        known |= {path for chain in self.chains for path in (chain.path, *(step.path for step in chain.steps))}
        return [p for p in self.problems if (self._field_path(p.path) or "") not in known]

    def every_field(self) -> list[SchemaField]:
        """All fields that may carry an error, of the chosen sources only."""
        chosen = [
            *(f for s in self.models if s.value == self.model_source for f in s.fields),
            *(f for s in self.datasets if s.value == self.dataset_source for f in s.fields),
        ]
        options = [f for card in self.techniques for f in card.fields]
        runtime = [f for _, fields in self.runtime_options for f in fields]
        steps = [f for c in self.chains for f in (c.name, *(f for step in c.steps for f in step.fields))]
        return [
            self.name,
            self.task,
            self.baseline_name,
            *chosen,
            *self.workload,
            *self.more,
            *options,
            *runtime,
            *steps,
        ]

    def _field_path(self, path: str) -> str | None:
        """The form's path for a path of the spec: an option of ``experiments.2.recipe.0`` is its technique's."""
        parts = path.split(".")
        if parts[0] == "experiments" and len(parts) > 2 and parts[1].isdigit() and int(parts[1]) < len(self.pairs):
            pair = self.pairs[int(parts[1])]
            if parts[1:] == ["0", "name"]:
                return self.baseline_name.path
            if parts[2] == "recipe" and len(parts) > 4:
                return f"technique.{pair.technique}.{parts[4]}"
            if parts[2] == "runtime" and len(parts) > 3:
                return f"runtime.{pair.runtime}.{parts[3]}"
        if parts[0] == "experiments" and len(parts) > 1 and parts[1].isdigit():
            return self._chain_path(int(parts[1]) - len(self.pairs), parts[2:])
        known = {"workload": 2, "model": 2, "dataset": 2, "resources": 2, "slo": 2, "price": 2}
        return ".".join(parts[: known.get(parts[0], 1)]) or None

    def _chain_path(self, index: int, parts: list[str]) -> str | None:
        """The form's path for a path inside the experiment of a chain; None for one of a pair."""
        chains = self.chains
        if not 0 <= index < len(chains):
            return None
        chain = chains[index]
        if parts[:1] == ["name"]:
            return chain.name.path
        if parts[:1] == ["recipe"] and len(parts) > 1 and parts[1].isdigit() and int(parts[1]) < len(chain.steps):
            return ".".join([chain.steps[int(parts[1])].path, *parts[2:3]])
        return chain.path

    # -------------------------------------------------------------------------------------------------- helpers

    def _sources(self, rows: str, key: str) -> list[SourceChoice]:
        title = {"model": "Model", "dataset": "Data"}[key]
        return [
            SourceChoice(
                row["name"],
                row["title"],
                row["summary"] or row["schema"].get("description", ""),
                tuple(
                    replace(field, label=f"{title} {field.label.lower()}") if field.required else field
                    for field in sorted(
                        self._group(row["schema"], f"{key}.{row['name']}", key), key=lambda field: not field.required
                    )
                ),
            )
            for row in self._catalogue[rows]
        ]

    def _source(self, rows: str, key: str, chosen: str) -> dict[str, Any]:
        fields = next((s.fields for s in self._sources(rows, key) if s.value == chosen), ())
        return {"source": chosen, **_given(fields, self._posted)}

    def _options(self, kind: str, name: str) -> dict[str, Any]:
        rows = self._catalogue[f"{kind}s"]
        schema = schema_of(rows, name)
        return _given(self._group(schema, f"{kind}.{name}", f"{kind}.{name}"), self._posted)

    def _group(self, schema: Mapping[str, Any], prefix: str, path: str) -> list[SchemaField]:
        return [self._filled(field) for field in schema_fields.fields(schema, prefix, path, _NONE)]

    def _filled(self, field: SchemaField) -> SchemaField:
        text = self._posted.get(field.name, "")
        checked = text == "true" if self.bound or text else bool(field.default)
        entries = tuple((key, self._posted.get(f"{field.name}.{key}", "")) for key in field.keys)
        return replace(
            field,
            entries=entries,
            text=text,
            checked=checked and field.kind == "boolean",
            error=self._errors.get(field.path, ""),
        )

    def _hinted(self, field: SchemaField) -> SchemaField:
        """The field as it was filled in, with the values that suit the model where they are known."""
        offer = self._hints.get(field.path)
        valid, text = _offer(offer) if offer is not None else ((), "")
        return replace(self._filled(field), hinted=field.kind != "boolean", valid=valid, hint=text)

    def _pair(self, technique: str | None, runtime: str, title: str) -> PairChoice:
        pair = Pair(technique, runtime)
        return PairChoice(pair.value, runtime, title, pair.value in self._pairs)


#: Values that are named in a hint; all of them are offered while one types.
MAX_NAMED = 10


def _offer(valid: Any) -> tuple[tuple[str, ...], str]:
    """Values to choose from and a sentence: of a list the list, of ``{min, max}`` the bounds."""
    if isinstance(valid, Mapping):
        low, high = valid.get("min"), valid.get("max")
        if low is not None and high is not None:
            return (), f"For this model: {low} to {high}."
        return (), f"For this model: at {'most' if low is None else 'least'} {high if low is None else low}."
    values = tuple(str(value) for value in valid)
    more = f" and {len(values) - MAX_NAMED} more" if len(values) > MAX_NAMED else ""
    return values, f"For this model: {', '.join(values[:MAX_NAMED])}{more}." if values else ""


def _given(fields: list[SchemaField] | tuple[SchemaField, ...], posted: Mapping[str, str]) -> dict[str, Any]:
    """What differs from the defaults."""
    values: dict[str, Any] = {}
    for field in fields:
        value = field.checked if field.kind == "boolean" else schema_fields.parse(field, posted)
        if value is not None and value != field.default:
            values[field.name.rsplit(".", 1)[-1]] = value
    return values
