"""Reads the body of a submission: bounded before it is read, JSON or YAML, spec and trigger apart."""

from __future__ import annotations

from typing import Any, Literal

from django.http import HttpRequest
from django.http.request import UnreadablePostError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiments.spec import MAX_BYTES, Problem, SpecError, StudySpec, explain, load, parse
from webapp.api.errors import TooLarge, Unreadable
from webapp.core.errors import Invalid

_SYNTAX: dict[str, Literal["json", "yaml"]] = {
    "application/json": "json",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
}


class Trigger(BaseModel):
    """What made CI submit: shown with the study and linked from it."""

    model_config = ConfigDict(extra="forbid")

    repository: str | None = Field(default=None, max_length=200)
    commit: str | None = Field(default=None, max_length=64)
    branch: str | None = Field(default=None, max_length=200)
    pull_request: int | None = Field(default=None, ge=1)
    url: str | None = Field(default=None, max_length=500, pattern=r"^https?://")


class Submission(StudySpec):
    """The body of ``POST studies``: a spec, and optionally what triggered it."""

    trigger: Trigger | None = None


def limit(request: HttpRequest) -> None:
    """Refuse a body above the limit by its declared length, before a byte of it is read.

    Raises:
        TooLarge: more than a spec may have.
        Unreadable: a body of unknown length.
    """
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not length.isdigit():
        raise Unreadable("Content-Length is not a number")
    if int(length) > MAX_BYTES:
        raise TooLarge(f"the body has {int(length):,} bytes; at most {MAX_BYTES:,} are accepted")
    if length == "0" and request.headers.get("Transfer-Encoding"):
        raise Unreadable("send the body with a Content-Length")


def read_submission(request: HttpRequest) -> tuple[StudySpec, Trigger | None]:
    """The study and its trigger.

    Raises:
        Unreadable, TooLarge: see :func:`limit`; another content type.
        Invalid: not JSON or YAML; every problem of the spec, by path.
    """
    limit(request)
    syntax = _SYNTAX.get((request.content_type or "").lower())
    if syntax is None:
        raise Unreadable("send the spec as application/json or application/yaml")
    try:
        data: Any = load(request.read(MAX_BYTES + 1), syntax=syntax)
    except SpecError as error:
        raise Invalid.of(error) from None
    except (UnreadablePostError, OSError):
        raise Unreadable("the body ended before its Content-Length") from None
    if not isinstance(data, dict):
        raise Invalid("a spec must be a mapping of fields, starting with 'name:'")
    trigger = data.pop("trigger", None)
    problems: list[Problem] = []
    spec, parsed = None, None
    try:
        spec = parse(data)
    except SpecError as error:
        problems += error.problems
    if trigger is not None:
        try:
            parsed = Trigger.model_validate(trigger)
        except ValidationError as error:
            problems += [Problem(path=f"trigger.{p.path}".rstrip("."), message=p.message) for p in explain(error)]
    if problems or spec is None:
        raise Invalid.of(SpecError(problems))
    return spec, parsed
