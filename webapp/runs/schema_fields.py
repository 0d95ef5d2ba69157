"""JSON schema of a config class -> the fields of a form, and what was typed -> the values of a spec.

The spec's own models validate; here text becomes the type that the schema asks for, and what can't become it stays
text, so that the error is the spec's, at its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

Kind = Literal["text", "integer", "number", "boolean", "choice", "list", "mapping", "data"]


@dataclass(frozen=True)
class SchemaField:
    """One question. ``name`` is the form's input, ``path`` the place in the spec (for errors)."""

    name: str
    path: str
    label: str
    kind: Kind
    help: str = ""
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    item: Kind = "text"
    keys: tuple[str, ...] = ()
    entries: tuple[tuple[str, str], ...] = ()
    text: str = ""
    checked: bool = False
    error: str = ""
    hinted: bool = False  # preflight may say which values suit the chosen model
    valid: tuple[str, ...] = ()
    hint: str = ""

    @property
    def id(self) -> str:
        """A stable id for label, help and error."""
        return "f-" + self.name.replace(".", "-")

    @property
    def step(self) -> str:
        """The step of a number input."""
        return "1" if self.kind == "integer" else "any"

    @property
    def placeholder(self) -> str:
        """What an empty field means."""
        if self.required or self.kind == "boolean":
            return ""
        return as_text(self, self.default) or "not set"


def fields(schema: Mapping[str, Any], prefix: str, path: str, leave_out: frozenset[str]) -> list[SchemaField]:
    """One field per property; constants (the discriminator) and ``leave_out`` make none."""
    definitions = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    made = []
    for name, raw in schema.get("properties", {}).items():
        part = _resolve(raw, definitions)
        if name in leave_out or "const" in part:
            continue
        kind, facts = _kind(part, definitions)
        made.append(
            SchemaField(
                name=f"{prefix}.{name}",
                path=f"{path}.{name}",
                label=_label(name),
                kind=kind,
                help=part.get("description", ""),
                default=part.get("default"),
                required=name in required,
                **facts,
            )
        )
    return made


def _label(name: str) -> str:
    text = name
    for ending, unit in (("_ms", ", ms"), ("_s", ", s"), ("_mib", ", MiB")):
        if text.endswith(ending):
            text = text.removesuffix(ending) + unit
            break
    text = text.replace("_", " ")
    return text[:1].upper() + text[1:]


def _resolve(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in part:
        target = definitions.get(part["$ref"].rsplit("/", 1)[-1], {})
        return {**target, **{k: v for k, v in part.items() if k != "$ref"}}
    if len(part.get("allOf", ())) == 1:
        return {**_resolve(part["allOf"][0], definitions), **{k: v for k, v in part.items() if k != "allOf"}}
    return dict(part)


def _kind(part: dict[str, Any], definitions: Mapping[str, Any]) -> tuple[Kind, dict[str, Any]]:
    options = [_resolve(o, definitions) for o in part.get("anyOf") or part.get("oneOf") or ()]
    options = [o for o in options if o.get("type") != "null"]
    if len(options) == 1:
        return _kind({**options[0], **{k: v for k, v in part.items() if k not in {"anyOf", "oneOf"}}}, definitions)
    if options:
        choices = _choices(options)
        return ("choice", {"choices": choices}) if choices else ("data", {})
    if "enum" in part:
        return "choice", {"choices": tuple(str(value) for value in part["enum"])}
    match part.get("type"):
        case "boolean":
            return "boolean", {}
        case "integer" | "number" as kind:
            low = part.get("minimum", part.get("exclusiveMinimum"))
            high = part.get("maximum", part.get("exclusiveMaximum"))
            return kind, {"minimum": low, "maximum": high}
        case "string":
            return "text", {}
        case "array":
            item, _ = _kind(_resolve(part.get("items") or {}, definitions), definitions)
            return ("list", {"item": item}) if item in {"text", "integer", "number", "choice"} else ("data", {})
        case "object":
            keys = tuple(str(key) for key in (part.get("propertyNames") or {}).get("enum", ()))
            return ("mapping", {"keys": keys}) if keys else ("data", {})
    return "data", {}


def _choices(options: list[dict[str, Any]]) -> tuple[str, ...]:
    """Choices of a union of booleans, constants and enumerations; empty if it holds anything else."""
    found: list[str] = []
    for option in options:
        if option.get("type") == "boolean":
            found += ["true", "false"]
        elif "const" in option:
            found.append(str(option["const"]))
        elif "enum" in option:
            found += [str(value) for value in option["enum"]]
        else:
            return ()
    return tuple(found)


def as_text(field: SchemaField, value: Any) -> str:
    """A value as its field shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if field.kind == "list":
        return ", ".join(str(item) for item in value)
    if field.kind in {"mapping", "data"}:
        return yaml.safe_dump(value, default_flow_style=True, width=10_000).strip() if value else ""
    return str(value)


def parse(field: SchemaField, posted: Mapping[str, str]) -> Any:
    """What was typed as the schema's type; None where nothing was typed (the spec's default applies)."""
    if field.kind == "mapping":
        given = {key: posted.get(f"{field.name}.{key}", "").strip() for key in field.keys}
        return {key: value for key, value in given.items() if value} or None
    text = posted.get(field.name, "").strip()
    if field.kind == "boolean":
        return field.name in posted
    if not text:
        return None
    if field.kind == "list":
        return [_scalar(field.item, part.strip()) for part in text.split(",") if part.strip()]
    if field.kind == "choice" and text in {"true", "false"}:
        return text == "true"
    if field.kind == "data":
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    return _scalar(field.kind, text)


def _scalar(kind: Kind, text: str) -> Any:
    try:
        if kind == "integer":
            return int(text.replace("_", ""))
        if kind == "number":
            return float(text)
    except ValueError:
        return text
    return text
