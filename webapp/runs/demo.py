"""The two studies that a first start queues."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from experiments import spec as specs
from webapp.accounts.models import Team
from webapp.runs import services
from webapp.runs.models import Status, Study

DEMO = ("reviews-classifier.yaml", "smollm2.yaml")


def demo_specs() -> list[specs.StudySpec]:
    """The studies as written in ``examples/``."""
    folder = Path(settings.BASE_DIR) / "examples"
    return [specs.parse((folder / name).read_bytes()) for name in DEMO]


def demo_queue(*, team: Team, again: bool = False) -> list[Study]:
    """The demo studies, queued once per team: one with the same spec that was queued before is reused.

    Args:
        team: who owns them.
        again: run those experiments again that failed or were cancelled.
    """
    found = []
    for spec in demo_specs():
        canonical = spec.model_dump(mode="json")
        known = Study.objects.filter(team=team, created_via="demo", name=spec.name).order_by("-pk")
        study = next((row for row in known if row.spec == canonical), None)
        if study is None:
            study = services.study_submit(team=team, spec=spec, via="demo")
        elif again:
            for experiment in study.experiments.filter(status__in=(Status.FAILED, Status.CANCELLED)):
                services.experiment_retry(team=team, experiment_id=experiment.pk, actor="demo")
        found.append(study)
    return found
