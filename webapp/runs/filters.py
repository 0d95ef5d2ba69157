"""The list of studies: what its address says, as the filter that page, API and export share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from webapp.runs.selectors import StudyFilter

#: Longer text finds nothing anyway.
MAX_TEXT = 200


def study_filter(query: Mapping[str, str]) -> StudyFilter:
    """The filter that a query string asks for; what it does not know is left out."""
    known = {field.name for field in fields(StudyFilter)}
    asked = {name: query.get(name, "").strip()[:MAX_TEXT] for name in known}
    asked["text"] = query.get("q", "").strip()[:MAX_TEXT]
    return StudyFilter(**asked)
