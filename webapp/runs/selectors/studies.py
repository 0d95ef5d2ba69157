"""Lists and states of studies, in a constant number of queries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, TextField, Value
from django.db.models.functions import Cast, StrIndex

from webapp.accounts.models import Team
from webapp.core.errors import Invalid, NotFound
from webapp.runs.models import Experiment, Status, Study

Row = TypeVar("Row")


@dataclass(frozen=True)
class StudyFilter:
    """What to keep; an empty field keeps everything. One filter serves page, API and export."""

    text: str = ""
    status: str = ""
    tag: str = ""
    via: str = ""
    repository: str = ""
    branch: str = ""
    commit: str = ""


@dataclass(frozen=True)
class StudyView:
    """A study with its derived status and how many experiments are in which state."""

    study: Study
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Derived from its experiments."""
        return derive_status(self.counts)

    @property
    def total(self) -> int:
        """Number of experiments."""
        return sum(self.counts.values())

    @property
    def ended(self) -> int:
        """Experiments that have ended."""
        return self.total - self.counts.get(Status.QUEUED, 0) - self.counts.get(Status.RUNNING, 0)


@dataclass(frozen=True)
class Page(Generic[Row]):
    """Some rows and where the next ones begin; None at the end."""

    items: list[Row]
    next_cursor: str | None


def studies(
    team: Team, filters: StudyFilter | None = None, *, cursor: str | None = None, limit: int = 50
) -> Page[StudyView]:
    """The team's studies, newest first, in two queries whatever their number.

    Raises:
        Invalid: the cursor is not one that an earlier page gave.
    """
    rows = _filtered(Study.objects.filter(team=team), filters or StudyFilter()).select_related("created_by")
    if cursor:
        if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
            raise Invalid("the cursor is not one that an earlier page gave")
        rows = rows.filter(pk__lt=int(cursor))
    limit = max(1, min(limit, 200))
    found = list(rows.defer("spec").order_by("-pk")[: limit + 1])
    shown = found[:limit]
    counts = _counts(row.pk for row in shown)
    return Page(
        items=[StudyView(row, counts.get(row.pk, {})) for row in shown],
        next_cursor=str(shown[-1].pk) if len(found) > limit else None,
    )


def study(team: Team, study_id: int) -> Study:
    """One study of the team.

    Raises:
        NotFound: there is none in this team.
    """
    found = Study.objects.filter(team=team, pk=study_id).select_related("created_by").first()
    if found is None:
        raise NotFound("there is no such study")
    return found


def study_status(study: Study) -> StudyView:
    """The study with its counts and derived status."""
    return StudyView(study, _counts([study.pk]).get(study.pk, {}))


def derive_status(counts: Mapping[str, int]) -> str:
    """A study's status from its experiments': open ones first, then failed, then cancelled, then succeeded."""
    seen = {status for status, count in counts.items() if count}
    if Status.RUNNING in seen or (Status.QUEUED in seen and len(seen) > 1):
        return Status.RUNNING.value
    for status in (Status.QUEUED, Status.FAILED, Status.CANCELLED):
        if status in seen:
            return status.value
    return Status.SUCCEEDED.value


def _counts(study_ids: Iterable[int]) -> dict[int, dict[str, int]]:
    result: dict[int, dict[str, int]] = {}
    rows = (
        Experiment.objects.filter(study_id__in=list(study_ids))
        .values_list("study_id", "status")
        .annotate(count=Count("pk"))
        .order_by()
    )
    for study_id, status, count in rows:
        result.setdefault(study_id, {})[status] = count
    return result


def _filtered(rows: QuerySet[Study], wanted: StudyFilter) -> QuerySet[Study]:
    if wanted.text:
        rows = rows.filter(name__icontains=wanted.text)
    if wanted.tag:
        # The tag's own JSON, quotes included, within the list's JSON: exact, and both databases can do it.
        text = Cast("tags", TextField())
        shapes = {json.dumps(wanted.tag), json.dumps(wanted.tag, ensure_ascii=False)}
        found = Q()
        for number, shape in enumerate(sorted(shapes)):
            rows = rows.annotate(**{f"_tag{number}": StrIndex(text, Value(shape))})
            found |= Q(**{f"_tag{number}__gt": 0})
        rows = rows.filter(found)
    if wanted.via:
        rows = rows.filter(created_via=wanted.via)
    for key in ("repository", "branch", "commit"):
        if value := getattr(wanted, key):
            rows = rows.filter(**{f"trigger__{key}": value})
    if wanted.status:
        rows = _with_status(rows, wanted.status)
    return rows


def _with_status(rows: QuerySet[Study], status: str) -> QuerySet[Study]:
    def has(*statuses: str) -> Exists:
        return Exists(Experiment.objects.filter(study=OuterRef("pk"), status__in=statuses))

    is_open = Q(has(Status.QUEUED, Status.RUNNING))
    ended = ~is_open
    match status:
        case Status.QUEUED:
            return rows.filter(
                Q(has(Status.QUEUED)), ~Q(has(Status.RUNNING, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED))
            )
        case Status.RUNNING:
            begun = Q(has(Status.RUNNING, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED))
            return rows.filter(is_open, begun)
        case Status.FAILED:
            return rows.filter(ended, Q(has(Status.FAILED)))
        case Status.CANCELLED:
            return rows.filter(ended, ~Q(has(Status.FAILED)), Q(has(Status.CANCELLED)))
        case Status.SUCCEEDED:
            return rows.filter(ended, ~Q(has(Status.FAILED, Status.CANCELLED)))
        case _:
            raise Invalid(f"status is one of {', '.join(Status.values)}")
