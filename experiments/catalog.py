"""Finds the plugins by package and builds the unions and JSON schemas from their config classes.

A new plugin is one new file in its package; nothing here changes. Torch is never imported.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_type_hints

from pydantic import Field

from experiments.protocols import (
    DatasetSource,
    Layout,
    Metric,
    MetricDefinition,
    ModelSource,
    Plugin,
    Runtime,
    Technique,
)

Kind = Literal["model", "dataset", "technique", "runtime", "layout"]

_KINDS: dict[str, tuple[str, type[Plugin], str]] = {
    "model": ("experiments.models", ModelSource, "source"),
    "dataset": ("experiments.datasets", DatasetSource, "source"),
    "technique": ("experiments.techniques", Technique, "technique"),
    "runtime": ("experiments.runtimes", Runtime, "kind"),
    "layout": ("experiments.layouts", Layout, "kind"),
}


def _classes(package: str, base: type) -> list[type[Any]]:
    """Concrete subclasses of ``base`` defined in the modules of ``package``, by module name."""
    found: list[type[Any]] = []
    root = importlib.import_module(package)
    for info in sorted(pkgutil.iter_modules(root.__path__), key=lambda i: i.name):
        module = importlib.import_module(f"{package}.{info.name}")
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, base) and value.__module__ == module.__name__:
                found.append(value)
    return found


@cache
def plugins(kind: Kind) -> dict[str, type[Any]]:
    """Name -> config class of every plugin of ``kind``."""
    package, base, discriminator = _KINDS[kind]
    named: dict[str, type[Any]] = {}
    for config in _classes(package, base):
        field = config.model_fields[discriminator]
        for name in get_args(field.annotation):
            if name in named:
                raise RuntimeError(f"two {kind} plugins are named {name!r}: {named[name]} and {config}")
            named[name] = config
    return named


def union(kind: Kind) -> Any:
    """The discriminated union of all config classes of ``kind``, as a pydantic annotation."""
    classes = tuple(dict.fromkeys(plugins(kind).values()))
    discriminator = _KINDS[kind][2]
    if len(classes) == 1:
        return classes[0]
    return Annotated[Union[classes], Field(discriminator=discriminator)]  # noqa: UP007 - a runtime tuple


@cache
def metrics() -> tuple[Metric, ...]:
    """One instance of every metric class."""
    return tuple(metric() for metric in _classes("experiments.metrics", Metric))


@cache
def definitions() -> dict[str, MetricDefinition]:
    """Metric name -> definition, in display order (file order within groups)."""
    order = get_args(get_type_hints(MetricDefinition)["group"])
    every = [definition for metric in metrics() for definition in metric.definitions]
    return {d.name: d for d in sorted(every, key=lambda d: order.index(d.group))}


#: Families of techniques in the order of the pages, and what people call them.
FAMILIES: dict[str, str] = {
    "precision": "Number format",
    "int8": "8-bit integers",
    "int4": "4-bit integers",
    "pruning": "Pruning",
    "recovery": "Recovery by training",
    "distillation": "Distillation",
    "lora": "LoRA",
    "other": "Others",
}


def family(technique: type[Technique]) -> str:
    """The family of a technique: the one it names, else the one that its name and what it makes tell."""
    if technique.family is not None:
        return technique.family
    name = str(get_args(technique.model_fields["technique"].annotation)[0])
    for start, found in _NAMED.items():
        if name.startswith(start):
            return found
    if technique.quantizes:
        return "int4" if "4" in (technique.makes or name) else "int8"
    return "precision" if technique.sets_number_format else "other"


_NAMED = {
    "prune": "pruning",
    "drop": "pruning",
    "finetune": "recovery",
    "distill": "distillation",
    "lora": "lora",
    "int4": "int4",
    "int8": "int8",
}


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice most like ``name``, or None if nothing is close."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return close[0] if close else None


@cache
def schema(kind: Kind, name: str) -> dict[str, Any]:
    """JSON schema of a plugin's config class; made once, to be read only."""
    made: dict[str, Any] = plugins(kind)[name].model_json_schema()
    return made


def describe() -> dict[str, Any]:
    """The whole catalogue as plain data: every plugin with its JSON schema and promises, every metric."""
    result: dict[str, Any] = {}
    for kind in _KINDS:
        rows = []
        for name, config in plugins(kind).items():
            row: dict[str, Any] = {
                "name": name,
                "title": config.title or name,
                "summary": config.summary,
                "origin": config.origin,
                "schema": schema(kind, name),
            }
            for attribute in ("tasks", "devices", "forms"):
                if hasattr(config, attribute):
                    row[attribute] = sorted(getattr(config, attribute))
            if kind == "technique":
                row["label"] = config.label.value
                row["family"] = family(config)
                row["textbook"] = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(config.textbook).items()}
            if kind == "runtime":
                row["form"] = config.form
            rows.append(row)
        result[f"{kind}s"] = rows
    result["metrics"] = [
        {
            "name": d.name,
            "title": d.title,
            "unit": d.unit,
            "higher_is_better": d.higher_is_better,
            "definition": d.definition,
            "source": d.source,
            "group": d.group,
        }
        for d in definitions().values()
    ]
    return result
