"""The API's description: django-ninja's OpenAPI 3.1, with the schema of bodies that ninja does not read itself."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, URLResolver
from ninja import NinjaAPI
from ninja.openapi.schema import REF_TEMPLATE, OpenAPISchema

from webapp.api.body import Submission
from webapp.api.errors import enveloped

#: For ``openapi_extra`` of the operation that takes a spec.
SUBMISSION_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        media: {"schema": {"$ref": REF_TEMPLATE.format(model=Submission.__name__)}}
        for media in ("application/json", "application/yaml")
    },
}


class DescribedApi(NinjaAPI):
    """A ninja API whose components include the models of bodies that its operations read by themselves."""

    @property
    def urls(self) -> tuple[list[URLResolver | URLPattern], str, str]:
        patterns, application, namespace = super().urls
        for pattern in patterns:
            if isinstance(pattern, URLPattern):
                pattern.callback = enveloped(pattern.callback)
        return patterns, application, namespace

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        schema = super().get_openapi_schema(path_prefix=path_prefix, path_params=path_params)
        model = Submission.model_json_schema(ref_template=REF_TEMPLATE)
        parts: dict[str, Any] = {**model.pop("$defs", {}), Submission.__name__: model}
        known = schema["components"]["schemas"]
        for name, part in parts.items():
            if known.setdefault(name, part) != part:
                raise RuntimeError(f"two models of the API are called {name!r}")
        schema["components"]["schemas"] = dict(sorted(known.items()))
        return schema
