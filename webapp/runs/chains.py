"""Recipes of several steps in the form: what was typed of them, and the edits that add, remove and move.

A chain is named by a key, its steps by keys of their own; the order is that of the repeated inputs ``chain`` and
``chain.KEY.step``. Edits change only these and the defaults of a step that is new, so nothing that was typed is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments import catalog
from webapp.runs import schema_fields
from webapp.runs.schema_fields import SchemaField

MAX_CHAINS = 40
MAX_STEPS = 16
_KEY = re.compile(r"[a-z0-9]{1,12}")

#: Text of an input -> the field as it was filled in.
Filled = Callable[[SchemaField], SchemaField]


@dataclass(frozen=True)
class ChainStep:
    """One step: a technique and its own settings."""

    chain: str
    key: str
    technique: str
    title: str
    summary: str
    fields: tuple[SchemaField, ...]
    error: str
    number: int
    first: bool
    last: bool

    @property
    def path(self) -> str:
        """Its place in the form, for errors and input names."""
        return f"chain.{self.chain}.{self.key}"

    @property
    def id(self) -> str:
        """For labels and errors."""
        return self.path.replace(".", "-")

    @property
    def typed(self) -> bool:
        """True if a setting differs from its default."""
        return any(
            field.error or (field.checked != bool(field.default) if field.kind == "boolean" else field.text)
            for field in self.fields
        )


@dataclass(frozen=True)
class Chain:
    """One experiment with a recipe of its own."""

    key: str
    name: SchemaField
    runtime: str
    steps: tuple[ChainStep, ...]
    error: str

    @property
    def path(self) -> str:
        """Its place in the form."""
        return f"chain.{self.key}"

    @property
    def id(self) -> str:
        """For labels and errors."""
        return f"chain-{self.key}"

    @property
    def full(self) -> bool:
        """True if no step fits any more."""
        return len(self.steps) >= MAX_STEPS


class Posted:
    """What a browser sent: the last value of each input, and the order of those that repeat."""

    def __init__(self, values: Mapping[str, str], order: Mapping[str, Sequence[str]]) -> None:
        self.values = dict(values)
        self._order = {name: list(dict.fromkeys(keys)) for name, keys in order.items()}

    @classmethod
    def of(cls, posted: Mapping[str, Any]) -> Posted:
        """From a form as Django reads it, or any mapping."""
        getlist = getattr(posted, "getlist", lambda name: [posted[name]] if name in posted else [])
        repeated = {name: getlist(name) for name in posted if name == "chain" or name.endswith(".step")}
        return cls({name: str(posted[name]) for name in posted}, repeated)

    @property
    def chains(self) -> list[str]:
        """Keys of the chains, in order."""
        return [key for key in self._order.get("chain", ()) if _KEY.fullmatch(key)][:MAX_CHAINS]

    def steps(self, chain: str) -> list[str]:
        """Keys of a chain's steps, in order."""
        return [key for key in self._order.get(f"chain.{chain}.step", ()) if _KEY.fullmatch(key)][:MAX_STEPS]

    def add(self, name: str, runtime: str, recipe: Sequence[Mapping[str, Any]] = ()) -> str:
        """A new chain at the end; its key."""
        key = _free(self._order.get("chain", ()))
        self._order.setdefault("chain", []).append(key)
        self.values |= {f"chain.{key}.name": name, f"chain.{key}.runtime": runtime}
        for step in recipe:
            self.add_step(key, str(step.get("technique")), step)
        return key

    def add_step(self, chain: str, technique: str, settings: Mapping[str, Any] | None = None) -> str:
        """A new step at the end of a chain, with these settings or the defaults; its key."""
        name = f"chain.{chain}.step"
        key = _free(self._order.get(name, ()))
        self._order.setdefault(name, []).append(key)
        prefix = f"chain.{chain}.{key}"
        self.values |= {f"{prefix}.technique": technique, f"{prefix}.shown": technique}
        for field in step_fields(technique, prefix):
            value = (settings or {}).get(field.name.rsplit(".", 1)[-1])
            if value is None and field.kind == "boolean":
                value = field.default  # a box that is not ticked says no, so a new one is ticked where the default is
            if value is not None:
                self.values[field.name] = schema_fields.as_text(field, value)
        return key

    def edit(self, what: str) -> tuple[str, str]:
        """Do ``add``, ``remove:CHAIN``, ``add-step:CHAIN``, ``remove-step|up|down|technique:CHAIN:STEP``.

        Returns:
            The id of what should have the focus now, and what to say to those who can't see it. What is not there
            is left alone.
        """
        action, *keys = what.split(":")
        chain = keys[0] if keys and keys[0] in self.chains else None
        step = keys[1] if chain and len(keys) > 1 and keys[1] in self.steps(chain) else None
        if action == "add" and len(self.chains) < MAX_CHAINS:
            key = self.add("", self.values.get("baseline_runtime", ""))
            first = self.add_step(key, next(iter(catalog.plugins("technique"))))
            return f"chain-{key}-{first}-technique", "A recipe was added."
        if action == "remove" and chain:
            self._order["chain"].remove(chain)
            return "add-recipe", "The recipe was removed."
        if action == "add-step" and chain and len(self.steps(chain)) < MAX_STEPS:
            key = self.add_step(chain, next(iter(catalog.plugins("technique"))))
            return f"chain-{chain}-{key}-technique", f"Step {len(self.steps(chain))} was added."
        if chain is None or step is None:
            return "", ""
        return self._edit_step(action, chain, step)

    def _edit_step(self, action: str, chain: str, step: str) -> tuple[str, str]:
        order = self._order[f"chain.{chain}.step"]
        at = order.index(step)
        if action == "remove-step":
            order.remove(step)
            return f"chain-{chain}-add", f"Step {at + 1} was removed."
        if action in ("up", "down"):
            to = at + (1 if action == "down" else -1)
            if not 0 <= to < len(order):
                return f"chain-{chain}-{step}-technique", ""
            order[at], order[to] = order[to], order[at]
            end = to in (0, len(order) - 1)
            turned = {"up": "down", "down": "up"}[action] if end else action
            return f"chain-{chain}-{step}-{turned}", f"Step {at + 1} is now step {to + 1}."
        self._settle(chain, step)
        return f"chain-{chain}-{step}-technique", ""

    def _settle(self, chain: str, step: str) -> None:
        """A step has another technique by now: settings of the same name stay, the others get their defaults."""
        prefix = f"chain.{chain}.{step}"
        technique, shown = (self.values.get(f"{prefix}.{name}", "") for name in ("technique", "shown"))
        before = {field.name for field in step_fields(shown, prefix)}
        for field in step_fields(technique, prefix):
            typed = self.values.get(field.name, "")
            if field.name not in before and field.kind == "boolean" and field.default:
                self.values[field.name] = "true"
            elif field.kind == "choice" and typed not in ("", *field.choices):
                del self.values[field.name]
        self.values[f"{prefix}.shown"] = technique


def step_fields(technique: str, prefix: str) -> list[SchemaField]:
    """The settings of a technique as fields below ``prefix``; an unknown technique has none."""
    if technique not in catalog.plugins("technique"):
        return []
    return schema_fields.fields(catalog.schema("technique", technique), prefix, prefix, frozenset())


def read(posted: Posted, filled: Filled, hinted: Filled, errors: Mapping[str, str]) -> list[Chain]:
    """The chains as they were filled in; settings of steps come ``hinted``, names only ``filled``."""
    known = catalog.plugins("technique")
    chains = []
    for key in posted.chains:
        path = f"chain.{key}"
        keys = posted.steps(key)
        steps = []
        for index, step in enumerate(keys):
            prefix = f"{path}.{step}"
            technique = posted.values.get(f"{prefix}.technique", "")
            config = known.get(technique)
            steps.append(
                ChainStep(
                    chain=key,
                    key=step,
                    technique=technique,
                    title=(config.title if config else "") or technique,
                    summary=config.summary if config else "",
                    fields=tuple(hinted(field) for field in step_fields(technique, prefix)),
                    error=errors.get(prefix, ""),
                    number=index + 1,
                    first=index == 0,
                    last=index == len(keys) - 1,
                )
            )
        name = SchemaField(f"{path}.name", f"{path}.name", "Name", "text", default=_usual_name(steps))
        runtime = posted.values.get(f"{path}.runtime", "")
        chains.append(Chain(key, filled(name), runtime, tuple(steps), errors.get(path, "")))
    return chains


def _usual_name(steps: Sequence[ChainStep]) -> str:
    return "-".join(step.technique for step in steps) or "as-is"


def _free(taken: Sequence[str]) -> str:
    number = max((int(key) for key in taken if key.isdigit()), default=-1) + 1
    return str(number)
