"""The API as a whole: its operations, who may call, how errors look, how it describes itself."""

from __future__ import annotations

from experiments import __version__
from webapp.api import capabilities, errors, experiments, studies
from webapp.api.auth import ApiKey, Session
from webapp.api.docs import ReferencePage
from webapp.api.openapi import DescribedApi

api = DescribedApi(
    title="Steelyard",
    version=__version__,
    description="Queue compression and sharding experiments, follow them, fetch what was measured.",
    urls_namespace="api",
    auth=[ApiKey(), Session()],
    docs=ReferencePage(),
)
errors.install(api)
for router in (studies.router, experiments.router, capabilities.router):
    api.add_router("", router)
