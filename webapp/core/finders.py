"""Serves plotly.js from the installed ``plotly`` wheel, so that no third-party code is committed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

#: URL path below ``/static/``.
PLOTLY = "plotly/plotly.min.js"


def plotly_folder() -> Path:
    """Folder of the wheel that holds ``plotly.min.js``; found without importing plotly."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise RuntimeError("plotly is not installed; run `make` to install the locked dependencies")
    return Path(spec.origin).parent / "package_data"


class PlotlyFinder(BaseFinder):
    """Finds ``plotly/plotly.min.js`` and nothing else of the wheel."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.storage = FileSystemStorage(location=plotly_folder())
        self.storage.prefix = "plotly"  # type: ignore[attr-defined]  # read by collectstatic

    def check(self, **kwargs: Any) -> list[Any]:
        """Nothing to configure, nothing to check."""
        return []

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """The file's place on disk, or an empty list as Django asks."""
        if path != PLOTLY:
            return []
        found = str(plotly_folder() / "plotly.min.js")
        return [found] if kwargs.get("find_all") or kwargs.get("all") else found

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[tuple[str, FileSystemStorage]]:
        """The one file."""
        yield "plotly.min.js", self.storage
