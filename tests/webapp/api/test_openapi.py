"""The API's description: committed, complete, correct, and readable on a page without anybody's CDN."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from experiments import catalog
from webapp.api.docs import type_of

SNAPSHOT = Path(__file__).resolve().parents[2] / "snapshots" / "openapi.json"


@pytest.fixture
def schema(db: None) -> dict[str, Any]:
    response = Client().get("/api/v1/openapi.json")
    assert response.status_code == 200
    body: dict[str, Any] = response.json()
    return body


def nodes(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        for inside in part.values():
            yield from nodes(inside)
    elif isinstance(part, list):
        for inside in part:
            yield from nodes(inside)


def test_the_description_is_the_one_that_is_committed(schema: dict[str, Any]) -> None:
    """A change of the API is seen in review. UPDATE_SNAPSHOTS=1 writes the new one."""
    text = json.dumps(schema, indent=1, sort_keys=True) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(text)
    assert SNAPSHOT.read_text() == text, "run this test with UPDATE_SNAPSHOTS=1 if the change is meant"


def test_it_is_openapi_3_1_with_every_call_of_the_contract(schema: dict[str, Any]) -> None:
    assert schema["openapi"].startswith("3.1")
    calls = {(method.upper(), path) for path, methods in schema["paths"].items() for method in methods}
    assert calls == {
        ("POST", "/api/v1/studies"),
        ("GET", "/api/v1/studies"),
        ("GET", "/api/v1/studies/{study_id}"),
        ("GET", "/api/v1/studies/{study_id}/results"),
        ("POST", "/api/v1/studies/{study_id}/cancel"),
        ("GET", "/api/v1/experiments/{experiment_id}"),
        ("GET", "/api/v1/experiments/{experiment_id}/events"),
        ("GET", "/api/v1/experiments/{experiment_id}/logs"),
        ("GET", "/api/v1/experiments/{experiment_id}/artifact"),
        ("POST", "/api/v1/experiments/{experiment_id}/cancel"),
        ("POST", "/api/v1/experiments/{experiment_id}/retry"),
        ("GET", "/api/v1/catalog"),
        ("GET", "/api/v1/workers"),
    }


def test_every_reference_leads_somewhere(schema: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in schema["components"]["schemas"]}
    references = {node["$ref"] for node in nodes(schema) if isinstance(node.get("$ref"), str)}
    mapped = {target for node in nodes(schema) for target in node.get("discriminator", {}).get("mapping", {}).values()}
    assert references
    assert references | mapped <= known


def test_every_union_of_plugins_is_told_apart_by_its_own_names(schema: dict[str, Any]) -> None:
    parts = schema["components"]["schemas"]
    found: dict[str, set[str]] = {}
    for node in nodes(parts):
        if "discriminator" not in node:
            continue
        field, mapping = node["discriminator"]["propertyName"], node["discriminator"]["mapping"]
        assert {part["$ref"] for part in node["oneOf"]} == set(mapping.values())
        for name, target in mapping.items():
            tag = parts[target.rsplit("/", 1)[-1]]["properties"][field]
            assert name in (tag.get("enum") or [tag.get("const")])
        found.setdefault(field, set()).update(mapping)
    assert found["technique"] == set(catalog.plugins("technique"))
    assert found["kind"] >= set(catalog.plugins("runtime"))
    assert found["source"] == set(catalog.plugins("model")) | set(catalog.plugins("dataset"))


def test_what_people_may_write_is_described_too(schema: dict[str, Any]) -> None:
    parts = schema["components"]["schemas"]
    assert "trigger" in parts["Submission"]["properties"]
    assert parts["Submission"]["additionalProperties"] is False
    assert "grid" in parts["Variant"]["properties"]
    assert {"type": "string"} in parts["Variant"]["properties"]["runtime"]["anyOf"]
    body = schema["paths"]["/api/v1/studies"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "application/yaml"}


def test_every_call_documents_its_errors_and_its_keys(schema: dict[str, Any]) -> None:
    for methods in schema["paths"].values():
        for call in methods.values():
            assert {"401", "403", "422", "429"} <= set(call["responses"])
            for status, answer in call["responses"].items():
                if int(status) >= 400:
                    reference = answer["content"]["application/json"]["schema"]["$ref"]
                    assert reference == "#/components/schemas/ErrorEnvelope"
            assert {"ApiKey": []} in call["security"]


def test_the_reference_page_needs_no_script_and_nothing_from_elsewhere(db: None) -> None:
    response = Client().get("/api/v1/docs")
    assert response.status_code == 200
    html = response.content.decode()
    assert "/api/v1/studies/{study_id}/results" in html
    for name in ("Submission", "ErrorEnvelope", "StudyReport"):
        assert f'id="schema-{name}"' in html
    loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']([^\"']+)", html)
    assert loaded
    assert all(address.startswith("/") and not address.startswith("//") for address in loaded)
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", html)
    assert not re.search(r"\sstyle=|\son\w+=\"", html)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "integer, at least 1, at most 9"),
        ({"type": "number", "exclusiveMinimum": 0}, "number, above 0"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/X"}}, "list of X"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "object of string"),
        ({"const": "cpu"}, "'cpu'"),
        ({"enum": ["a", 1]}, "'a' or 1"),
        ({}, "anything"),
    ],
)
def test_types_read_as_words(schema: dict[str, Any], text: str) -> None:
    assert type_of(schema).text == text
