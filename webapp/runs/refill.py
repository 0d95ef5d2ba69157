"""A stored study as the form would hold it if someone had typed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments import catalog
from experiments.spec import Price, Resources, Slo, Workload
from webapp.runs import schema_fields
from webapp.runs.chains import MAX_CHAINS, Posted
from webapp.runs.pairs import AS_IS, Pair, default_runtime
from webapp.runs.schema_fields import SchemaField

#: What is ticked on a fresh form, and where.
_FIRST_TECHNIQUES = ("int8-dynamic",)
_FIRST_RUNTIMES = ("torch-eager", "onnxruntime")
_NONE: frozenset[str] = frozenset()


def expressible(spec: dict[str, Any]) -> bool:
    """True if the form can say this study: one layout, one set of options a runtime, an unchanged baseline."""
    options: dict[str, Any] = {}
    if len(spec.get("experiments") or ()) > MAX_CHAINS:
        return False  # a grid is easier to read as YAML
    for variant in spec.get("experiments") or ():
        if variant.get("resources"):
            return False
        if (variant.get("layout") or {}).get("kind", "single") != "single":
            return False
        if variant["name"] == spec.get("baseline") and variant.get("recipe"):
            return False
        runtime = variant.get("runtime") or {"kind": default_runtime()}
        if options.setdefault(runtime["kind"], runtime) != runtime:
            return False
    return not spec.get("gate") and not spec.get("labels")


def filled_from(spec: dict[str, Any]) -> tuple[Posted, list[str]]:
    """What the form would hold if someone had typed this spec."""
    described = catalog.describe()
    posted: dict[str, str] = {"name": str(spec.get("name", ""))}
    for key, rows in (("model", "models"), ("dataset", "datasets")):
        source = spec.get(key)
        if source is None:
            posted[f"{key}.source"] = "" if key == "dataset" else "demo"
            continue
        posted[f"{key}.source"] = source["source"]
        schema = schema_of(described[rows], source["source"])
        _write(posted, schema_fields.fields(schema, f"{key}.{source['source']}", key, _NONE), source)
    for key, model in (("workload", Workload), ("resources", Resources), ("slo", Slo), ("price", Price)):
        _write(posted, schema_fields.fields(model.model_json_schema(), key, key, _NONE), spec.get(key) or {})
    for key in ("task", "seed", "priority"):
        if spec.get(key) is not None:
            posted[key] = str(spec[key])
    every = Posted(posted, {})
    return every, _variants(spec, described, every)


def _variants(spec: dict[str, Any], described: dict[str, Any], posted: Posted) -> list[str]:
    """Fill in the experiments: a box for each that a box can say, a chain for every other; the boxes."""
    if not spec.get("experiments"):
        runtimes = [row["name"] for row in described["runtimes"] if row["name"] in _FIRST_RUNTIMES]
        return [f"{name}|{runtime}" for name in ("", *_FIRST_TECHNIQUES) for runtime in runtimes]
    pairs: list[str] = []
    steps: dict[str, Any] = {}
    baseline: dict[str, Any] = next((v for v in spec["experiments"] if v["name"] == spec.get("baseline")), {})
    baseline_runtime = (baseline.get("runtime") or {}).get("kind", default_runtime())
    posted.values["baseline_runtime"] = baseline_runtime
    if baseline and baseline["name"] != AS_IS:
        posted.values["baseline_name"] = baseline["name"]
    for variant in spec["experiments"]:
        runtime = variant.get("runtime") or {"kind": default_runtime()}
        recipe = list(variant.get("recipe") or ())
        pair = Pair(recipe[0]["technique"] if recipe else None, runtime["kind"])
        schema = schema_of(described["runtimes"], runtime["kind"])
        prefix = f"runtime.{runtime['kind']}"
        _write(posted.values, schema_fields.fields(schema, prefix, prefix, _NONE), runtime)
        alone = len(recipe) <= 1 and (variant is baseline or variant["name"] == pair.name(baseline_runtime))
        # One card has one set of options: a second experiment with others is a chain of one step.
        if not alone or (recipe and steps.setdefault(recipe[0]["technique"], recipe[0]) != recipe[0]):
            posted.add(variant["name"], runtime["kind"], recipe)
            continue
        pairs.append(pair.value)
        if recipe:
            name = recipe[0]["technique"]
            schema = schema_of(described["techniques"], name)
            _write(
                posted.values, schema_fields.fields(schema, f"technique.{name}", f"technique.{name}", _NONE), recipe[0]
            )
    return pairs


def schema_of(rows: list[dict[str, Any]], name: Any) -> dict[str, Any]:
    """JSON schema of the catalogue's row of this name; an unknown name has no fields."""
    return next((row["schema"] for row in rows if row["name"] == name), {})


def _write(posted: dict[str, str], fields: list[SchemaField], values: Mapping[str, Any]) -> None:
    for field in fields:
        value = values.get(field.name.rsplit(".", 1)[-1])
        if value is None:
            continue
        if field.kind == "mapping":
            for key, inner in value.items():
                posted[f"{field.name}.{key}"] = str(inner)
        else:
            posted[field.name] = schema_fields.as_text(field, value)
