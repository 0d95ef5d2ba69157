"""The one shape of every error: ``{"error": {"code", "message", "fields": [{"path", "message"}]}}``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import structlog
from django.core.exceptions import RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, Throttled, ValidationError
from pydantic import BaseModel, Field

from experiments.spec import Problem
from webapp.core.errors import DomainError, Invalid, NotFound, Unauthenticated

log = structlog.get_logger(__name__)


class ErrorField(BaseModel):
    """One thing that is wrong with what was sent."""

    path: str = Field(description="Path in the body, e.g. 'experiments.1.recipe.0.technique', or a parameter's name.")
    message: str


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="For programs, e.g. 'not_found'.")
    message: str = Field(description="One sentence for people.")
    fields: list[ErrorField] = []


class ErrorEnvelope(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetail


class Unreadable(DomainError):
    """A body that is not what its content type says."""

    code = "unreadable"
    status = 400


class TooLarge(DomainError):
    """A body above the limit; it was not read."""

    code = "too_large"
    status = 413


#: What any call may answer beside its success, for the schema. 500 is a fault of ours, never an answer by design.
ERRORS: dict[int, Any] = dict.fromkeys((400, 401, 403, 404, 409, 413, 422, 429), ErrorEnvelope)


def errors(*statuses: int) -> dict[int, Any]:
    """The errors of an operation: those named, and those that every call with a key may give."""
    return {status: ERRORS[status] for status in sorted({401, 403, 422, 429, *statuses})}


def envelope(status: int, code: str, message: str, fields: list[Problem] | None = None) -> JsonResponse:
    """An error as an answer."""
    detail = ErrorDetail(
        code=code, message=message, fields=[ErrorField(path=p.path, message=p.message) for p in fields or []]
    )
    return JsonResponse(ErrorEnvelope(error=detail).model_dump(), status=status)


def answer(error: DomainError) -> JsonResponse:
    """What a service refused, as an answer."""
    response = envelope(error.status, error.code, error.message, error.fields)
    if error.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="steelyard"'
    return response


@csrf_exempt
def not_found(request: HttpRequest, path: str = "") -> HttpResponse:
    """Any address below the API that is not one of its own."""
    return envelope(404, "not_found", "there is no such address in this API; see /api/v1/docs")


def enveloped(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """``view`` with the two errors that ninja answers before its own handlers: a wrong method, and its root.

    Whether a CSRF token is needed is the business of :mod:`webapp.api.auth`, where the kind of caller is known.
    """

    @csrf_exempt
    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            response = view(request, *args, **kwargs)
        except Http404:
            return not_found(request)
        if response.status_code != 405:
            return response
        allowed = response.headers.get("Allow", "")
        refused = envelope(405, "method_not_allowed", f"this address takes {allowed}, not {request.method}")
        refused["Allow"] = allowed
        return refused

    return wrapped


def install(api: NinjaAPI) -> None:
    """Make every exception of an operation an envelope; an unforeseen one is logged and shown without its trace."""

    @api.exception_handler(DomainError)
    def _domain(request: HttpRequest, error: DomainError) -> HttpResponse:
        return answer(error)

    @api.exception_handler(RequestDataTooBig)
    def _too_big(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
        return answer(TooLarge("the body is too large"))

    @api.exception_handler(Http404)
    def _http_404(request: HttpRequest, error: Http404) -> HttpResponse:
        return answer(NotFound("there is no such object"))

    @api.exception_handler(AuthenticationError)
    def _unauthenticated(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
        return answer(Unauthenticated("send an API key as 'Authorization: Bearer ...', or sign in"))

    @api.exception_handler(Throttled)
    def _throttled(request: HttpRequest, error: Throttled) -> HttpResponse:
        response = envelope(429, "too_many_requests", "too many requests; try again later")
        if error.wait:
            response["Retry-After"] = str(int(error.wait))
        return response

    @api.exception_handler(HttpError)
    def _http(request: HttpRequest, error: HttpError) -> HttpResponse:
        codes = {400: "unreadable", 403: "forbidden", 404: "not_found"}
        return envelope(error.status_code, codes.get(error.status_code, "error"), error.message)

    @api.exception_handler(ValidationError)
    def _parameters(request: HttpRequest, error: ValidationError) -> HttpResponse:
        problems = [
            Problem(path=".".join(str(part) for part in item["loc"][1:]), message=item["msg"]) for item in error.errors
        ]
        return answer(Invalid("; ".join(str(p) for p in problems), fields=problems))

    @api.exception_handler(Exception)
    def _fault(request: HttpRequest, error: Exception) -> HttpResponse:
        log.exception("api_fault", path=request.path, method=request.method)
        return envelope(500, "internal", "an error of the server; its log says more")
