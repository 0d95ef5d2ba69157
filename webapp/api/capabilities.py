"""What can be asked for, and who can run it."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router

from experiments import catalog
from webapp.api.auth import caller
from webapp.api.errors import errors
from webapp.api.schemas import Catalog, WorkerList
from webapp.runs import selectors

router = Router(tags=["capabilities"])


@router.get("/catalog", response={200: Catalog, **errors()}, by_alias=True, summary="What a spec may name")
def get_catalog(request: HttpRequest) -> Catalog:
    """Every technique, runtime, layout, source and metric of this server, with the JSON schema of its settings."""
    return Catalog.model_validate(catalog.describe())


@router.get("/workers", response={200: WorkerList, **errors()}, summary="Workers and their devices")
def list_workers(request: HttpRequest) -> WorkerList:
    """Workers serve all teams; whose experiment a busy device runs is not said."""
    return WorkerList.of(selectors.queue_snapshot(caller(request).team))
