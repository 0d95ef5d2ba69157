"""The reference page of the API, made from its own schema: no script, no CDN, readable without an account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from ninja import NinjaAPI
from ninja.openapi.docs import DocsBase


@dataclass(frozen=True)
class Type:
    """A type in words, with the schemas it names."""

    text: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A parameter of an operation, a field of a schema, or an answer by its status."""

    name: str
    type: Type
    required: bool
    description: str


@dataclass(frozen=True)
class Operation:
    """One call."""

    method: str
    path: str
    anchor: str
    summary: str
    description: str
    parameters: tuple[Entry, ...]
    body: Type | None
    media: tuple[str, ...]
    answers: tuple[Entry, ...]


@dataclass(frozen=True)
class Schema:
    """One model."""

    name: str
    description: str
    fields: tuple[Entry, ...]
    type: Type


class ReferencePage(DocsBase):
    """Renders :func:`operations` and :func:`schemas` with the project's own styles."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **kwargs: Any) -> HttpResponse:
        schema = api.get_openapi_schema(path_params=kwargs)
        context = {
            "info": schema["info"],
            "operations": operations(schema),
            "schemas": schemas(schema),
            "openapi_url": self.get_openapi_url(api, kwargs),
        }
        return render(request, "api/docs.html", context)


def operations(schema: dict[str, Any]) -> list[Operation]:
    """Every call of an OpenAPI document, in its order."""
    made = []
    for path, methods in schema["paths"].items():
        for method, details in methods.items():
            content = details.get("requestBody", {}).get("content", {})
            body = next((type_of(part["schema"]) for part in content.values()), None)
            made.append(
                Operation(
                    method=method.upper(),
                    path=path,
                    anchor=details["operationId"],
                    summary=details.get("summary", ""),
                    description=_plain(details),
                    parameters=tuple(_parameter(p) for p in details.get("parameters", ())),
                    body=body,
                    media=tuple(content),
                    answers=tuple(_answer(str(s), a) for s, a in details["responses"].items()),
                )
            )
    return made


def schemas(schema: dict[str, Any]) -> list[Schema]:
    """Every model of an OpenAPI document, by name."""
    made = []
    for name, part in sorted(schema["components"]["schemas"].items()):
        required = set(part.get("required", ()))
        fields = tuple(
            Entry(name=field, type=type_of(of), required=field in required, description=_plain(of))
            for field, of in part.get("properties", {}).items()
        )
        made.append(Schema(name=name, description=_plain(part), fields=fields, type=type_of(part)))
    return made


def type_of(schema: dict[str, Any]) -> Type:
    """A JSON schema in words: 'integer, 1 to 4096', 'list of Variant', "'cpu' or 'cuda'"."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return Type(name, (name,))
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            parts = [type_of(part) for part in schema[union]]
            return Type(" or ".join(p.text for p in parts), tuple(dict.fromkeys(n for p in parts for n in p.names)))
    if "const" in schema:
        return Type(repr(schema["const"]))
    if "enum" in schema:
        return Type(" or ".join(repr(value) for value in schema["enum"]))
    kind = schema.get("type", "anything")
    if kind == "array":
        inner = type_of(schema["items"]) if isinstance(schema.get("items"), dict) else Type("anything")
        return Type(f"list of {inner.text}", inner.names)
    if kind == "object":
        inside = schema.get("additionalProperties")
        inner = type_of(inside) if isinstance(inside, dict) and inside else Type("anything")
        return Type("object" if schema.get("properties") else f"object of {inner.text}", inner.names)
    return Type(str(kind) + _bounds(schema))


def _plain(part: dict[str, Any]) -> str:
    """A description as text: the schema's own is Markdown, which this page does not render."""
    return str(part.get("description", "")).replace("`", "")


def _bounds(schema: dict[str, Any]) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    above, below = "exclusiveMinimum" in schema, "exclusiveMaximum" in schema
    words = []
    if low is not None:
        words.append(f"above {low}" if above else f"at least {low}")
    if high is not None:
        words.append(f"below {high}" if below else f"at most {high}")
    if "maxLength" in schema:
        words.append(f"at most {schema['maxLength']} characters")
    return "".join(f", {word}" for word in words)


def _parameter(parameter: dict[str, Any]) -> Entry:
    return Entry(
        name=parameter["name"],
        type=type_of(parameter["schema"]),
        required=parameter.get("required", False),
        description=f"({parameter['in']}) {parameter.get('description', '')}".strip(),
    )


def _answer(status: str, details: dict[str, Any]) -> Entry:
    content = details.get("content", {})
    kind = next((type_of(part["schema"]) for part in content.values()), Type("nothing"))
    return Entry(name=status, type=kind, required=False, description=details.get("description", ""))
