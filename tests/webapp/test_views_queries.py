"""Database queries of each page, kept as a snapshot: a page may not start to ask once per row.

``UPDATE_SNAPSHOTS=1 pytest tests/webapp/test_views_queries.py`` writes the snapshot anew; look at the difference
before committing it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests import factories
from tests.webapp import study_reports
from tests.webapp.pages import Visitor, visitor
from webapp.runs import selectors

SNAPSHOT = Path(__file__).parent.parent / "snapshots" / "page_queries.json"

pytestmark = pytest.mark.django_db


def pages(me: Visitor) -> Iterator[tuple[str, str]]:
    """Name and address of every page, with something on each."""
    ended = study_reports.ended_study(me.team, failed=("fp16",))
    running = study_reports.waiting_study(me.team)
    first = selectors.experiments(running)[0]
    study_reports.run(first, until="running")
    yield from (
        ("home", "/"),
        ("studies", "/studies"),
        ("new study", "/studies/new"),
        ("new study from another", f"/studies/new?from={ended.pk}"),
        ("ended study", f"/studies/{ended.pk}"),
        ("running study", f"/studies/{running.pk}"),
        ("poll of a running study", f"/studies/{running.pk}/live?after={first.pk}:0&ended=0"),
        ("comparison", f"/studies/{ended.pk}/results"),
        ("chart of two metrics", f"/studies/{ended.pk}/pareto"),
        ("ended experiment", f"/experiments/{selectors.experiments(ended)[0].pk}"),
        ("running experiment", f"/experiments/{first.pk}"),
        ("poll of a running experiment", f"/experiments/{first.pk}/live"),
        ("queue", "/queue"),
        ("catalog", "/catalog"),
    )


def count(me: Visitor, path: str) -> int:
    """Queries of one request."""
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert me.client.get(path).status_code == 200, path
    return len(seen)


def test_each_page_asks_the_database_as_often_as_it_did() -> None:
    me = visitor()
    factories.worker()
    counts = {name: count(me, path) for name, path in pages(me)}
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        SNAPSHOT.write_text(json.dumps(counts, indent=2) + "\n")
    assert counts == json.loads(SNAPSHOT.read_text())


def test_the_number_of_queries_does_not_grow_with_the_rows() -> None:
    me = visitor()
    factories.worker()
    few = study_reports.ended_study(me.team, names=["fp32", "fp16"])
    study_reports.waiting_study(me.team)
    before = {path: count(me, path) for path in ("/", "/studies", "/queue")}
    small = count(me, f"/studies/{few.pk}")
    for _ in range(3):
        many = study_reports.ended_study(me.team, priority=100)  # ahead of what waits
    for _ in range(3):
        study_reports.waiting_study(me.team)
    assert {path: count(me, path) for path in before} == before
    assert count(me, f"/studies/{many.pk}") == small
