"""What a person downloads of an experiment: the artifact's files, its card, and the spec that makes it again."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from django.http import StreamingHttpResponse
from django.utils.http import content_disposition_header

from experiments import card
from experiments.records import Report
from webapp.core import zip_stream
from webapp.core.zip_stream import Entry
from webapp.runs import artifact_files
from webapp.runs.models import Artifact, Experiment


def archive(experiment: Experiment, artifact: Artifact, report: Report) -> StreamingHttpResponse:
    """One zip with a folder named after the experiment, sent as it is read."""
    folder = card.folder_name(experiment.name)
    texts = {card.README: card.readme(report), card.SPEC: card.rebuilding_spec(report)}
    entries = [_text(f"{folder}/{name}", text) for name, text in texts.items()]
    for name, size in sorted(artifact.files.items()):
        if name not in texts:
            entries.append(Entry(f"{folder}/{name}", size, partial(artifact_files.read, artifact.sha256, name)))
    answer = StreamingHttpResponse(zip_stream.stream(entries), content_type="application/zip")
    answer["Content-Disposition"] = str(content_disposition_header(True, f"{experiment.pk}-{folder}.zip"))
    if (length := zip_stream.length(entries)) is not None:
        answer["Content-Length"] = str(length)
    return answer


def _text(name: str, text: str) -> Entry:
    data = text.encode()
    opened: Callable[[], IO[Any]] = partial(io.BytesIO, data)
    return Entry(name, len(data), opened)
