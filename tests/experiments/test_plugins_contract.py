"""One contract over every plugin that the catalogue finds; a new file is covered from its first commit."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from experiments import catalog
from experiments.parts.quantizer import Quantizer
from experiments.protocols import TASKS, Layout, Metric, Runtime, Technique
from experiments.records import Label

KINDS: tuple[catalog.Kind, ...] = get_args(catalog.Kind)
PLUGINS = [
    pytest.param(kind, name, config, id=f"{kind}:{name}")
    for kind in KINDS
    for name, config in catalog.plugins(kind).items()
]
CONFIGS = [
    pytest.param(config, id=f"{kind}:{name}") for kind in KINDS for name, config in catalog.plugins(kind).items()
]
TECHNIQUES = [pytest.param(config, id=name) for name, config in catalog.plugins("technique").items()]
RUNTIMES = [pytest.param(config, id=name) for name, config in catalog.plugins("runtime").items()]
LAYOUTS = [pytest.param(config, id=name) for name, config in catalog.plugins("layout").items()]
METRICS = [pytest.param(metric, id=type(metric).__name__) for metric in catalog.metrics()]
DEFINITIONS = [pytest.param(d, id=d.name) for metric in catalog.metrics() for d in metric.definitions]
HEAVY = {"torch", "transformers", "onnxruntime", "optimum", "onnx", "torchao", "peft", "accelerate", "sklearn", "gguf"}


def source_of(owner: type[Any]) -> Path:
    """The file that defines ``owner``."""
    return Path(inspect.getfile(owner))


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_class_is_frozen_and_refuses_unknown_fields(config: type[Any]) -> None:
    assert config.model_config.get("frozen") is True
    assert config.model_config.get("extra") == "forbid"
    with pytest.raises(ValidationError):
        config.model_validate({"no_such_field_of_this_plugin": 1})


@pytest.mark.parametrize("config", CONFIGS)
def test_a_plugin_says_what_it_is_and_where_it_comes_from(config: type[Any]) -> None:
    assert config.title, "title: what people read in a form"
    assert len(config.summary) > 20, "summary: one sentence for the catalogue page"
    assert config.__doc__ and config.__doc__ != config.__base__.__doc__
    assert sys.modules[config.__module__].__doc__


@pytest.mark.parametrize("config", [*TECHNIQUES, *RUNTIMES])
def test_a_technique_or_runtime_names_its_origin(config: type[Any]) -> None:
    assert config.origin, "origin: the paper, specification or library that defines the method"


@pytest.mark.parametrize("config", TECHNIQUES)
def test_a_technique_is_of_a_family_that_pages_know(config: type[Technique]) -> None:
    assert catalog.family(config) in set(catalog.FAMILIES) - {"other"}, "family: one of catalog.FAMILIES"


@pytest.mark.parametrize("config", TECHNIQUES)
def test_what_the_textbook_claims_in_numbers_is_a_range(config: type[Technique]) -> None:
    book = config.textbook
    for claim in (book.speedup, book.shrink, book.loss):
        assert claim is None or 0 <= claim[0] <= claim[1]
    for claim in (book.speedup, book.shrink):
        assert claim is None or claim[0] > 0, "times faster or smaller, never a share"
    assert book.loss is None or book.loss[1] < 1, "a share of the score, 0.02 for 2 %"


@pytest.mark.parametrize(("kind", "name", "config"), PLUGINS)
def test_a_schema_is_valid_json_and_describes_every_field(kind: catalog.Kind, name: str, config: type[Any]) -> None:
    schema = config.model_json_schema()
    json.dumps(schema, allow_nan=False)
    assert schema["additionalProperties"] is False
    discriminator = {"model": "source", "dataset": "source", "technique": "technique"}.get(kind, "kind")
    tag = schema["properties"][discriminator]
    assert name in (tag.get("const"), *tag.get("enum", ()))
    plain = {discriminator, "name", "path", "split", "limit", "revision"}
    undescribed = [
        field for field, value in schema["properties"].items() if field not in plain and not value.get("description")
    ]
    assert not undescribed, f"a person who fills the form needs a description of {undescribed}"


@pytest.mark.parametrize("config", CONFIGS)
def test_a_plugin_stands_alone_in_its_file(config: type[Any]) -> None:
    tree = ast.parse(source_of(config).read_text(encoding="utf-8"))
    allowed = {"spec", "records", "protocols", "stats", "hardware", "parts"}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute"
            names = [
                f"{node.module}.{alias.name}" if node.module == "experiments" else node.module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for imported in names:
            top, _, rest = imported.partition(".")
            assert top not in {"webapp", "workers", "django", "celery"}, imported
            if top == "experiments" and rest:
                assert rest.split(".")[0] in allowed, f"{config.__module__} may not import {imported}"


@pytest.mark.parametrize("config", CONFIGS)
def test_a_plugin_imports_heavy_libraries_inside_functions_only(config: type[Any]) -> None:
    tree = ast.parse(source_of(config).read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    top_level = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) and id(n) not in typing_only]
    for node in top_level:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        assert not HEAVY & {m.partition(".")[0] for m in modules}, f"{config.__module__} imports {modules} when loaded"


@pytest.mark.parametrize("config", TECHNIQUES)
def test_a_technique_declares_what_it_serves_and_keeps_the_promise(config: type[Technique]) -> None:
    assert config.forms and config.forms <= {"torch", "onnx"}
    assert config.tasks and config.tasks <= set(TASKS)
    assert config.devices and config.devices <= {"cpu", "cuda"}
    assert isinstance(config.label, Label)
    for form, method in (("torch", "apply_torch"), ("onnx", "apply_onnx")):
        own = method.replace("apply", "quantize") if issubclass(config, Quantizer) else method
        base = Quantizer if issubclass(config, Quantizer) else Technique
        implemented = getattr(config, own) is not getattr(base, own)
        assert implemented == (form in config.forms), f"{method} and forms disagree"
    assert config.textbook.latency and config.textbook.size and config.textbook.quality
    assert not (config.quantizes and config.lossless)


@pytest.mark.parametrize("config", RUNTIMES)
def test_a_runtime_declares_what_it_serves_and_keeps_the_promise(config: type[Runtime]) -> None:
    assert config.form in {"torch", "onnx"}
    assert config.tasks and config.tasks <= set(TASKS)
    assert config.devices and config.devices <= {"cpu", "cuda"}
    assert config.save is not Runtime.save
    assert config.open is not Runtime.open
    assert config.model_validate({}).libraries(), "the versions of its libraries belong to the fingerprint"


@pytest.mark.parametrize("config", LAYOUTS)
def test_a_layout_says_how_many_ranks_it_has(config: type[Layout]) -> None:
    assert config.world_size is not Layout.world_size
    assert {f for f, info in config.model_fields.items() if info.is_required()} or config.model_validate(
        {}
    ).world_size() >= 1


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_measures_what_it_defines(metric: Metric) -> None:
    assert metric.definitions
    assert type(metric).__doc__
    assert type(metric).measure is not Metric.measure
    assert metric.tasks and metric.tasks <= set(TASKS)


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_a_definition_has_a_unit_a_meaning_and_a_source(definition: Any) -> None:
    assert definition.name.islower() and definition.name.isidentifier()
    assert definition.title
    assert definition.unit or definition.group in {"quality", "fidelity"}, "only scores may be without unit"
    assert len(definition.definition) > 15
    contested = definition.group in {"quality", "fidelity", "limit"}
    assert definition.source or not contested, "where the definition comes from (empty: defined by this project)"


def test_metric_names_are_unique() -> None:
    names = [d.name for metric in catalog.metrics() for d in metric.definitions]
    assert names
    assert sorted(names) == sorted(set(names))


def test_the_described_catalogue_is_plain_json() -> None:
    described = catalog.describe()
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert {"models", "datasets", "techniques", "runtimes", "layouts", "metrics"} <= described.keys()
