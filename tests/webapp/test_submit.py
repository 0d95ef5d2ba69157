"""Submitting a study: whole or not at all, once per key, refused early with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from experiments.spec import parse
from tests import factories
from tests.webapp.threads import at_once
from webapp.accounts.models import Role
from webapp.core.errors import Conflict, Forbidden, Invalid
from webapp.runs import selectors, services
from webapp.runs.models import Attempt, Event, IdempotencyKey, Study

pytestmark = pytest.mark.django_db


def test_a_study_becomes_its_experiments_the_baseline_first() -> None:
    team = factories.team()
    study = services.study_submit(team=team, spec=factories.spec(("fp32", "int8", "again")))
    rows = selectors.experiments(study)
    assert [(row.index, row.name, row.status) for row in rows] == [
        (0, "fp32", "queued"),
        (1, "int8", "queued"),
        (2, "again", "queued"),
    ]
    assert all(row.spec["variant"]["name"] == row.name and len(row.spec_sha256) == 64 for row in rows)
    assert Event.objects.filter(experiment__study=study, kind="status").count() == 3


def test_what_no_device_can_run_ends_at_once_with_its_reason_and_the_rest_is_queued() -> None:
    factories.worker()
    spec = parse(
        {
            **factories.spec().model_dump(mode="json"),
            "experiments": [{"name": "fp32"}, {"name": "on-gpu", "resources": {"device": "cuda"}}],
        }
    )
    study = services.study_submit(team=factories.team(), spec=spec)
    cpu, gpu = selectors.experiments(study)
    assert cpu.status == "queued"
    assert (gpu.status, factories.failure(gpu)["kind"]) == ("failed", "unsupported")
    assert "cuda" in factories.failure(gpu)["message"].lower()
    assert not Attempt.objects.filter(experiment=gpu).exists()


def test_a_missing_model_fails_at_submission_with_its_path(tmp_path: Path, settings: Settings) -> None:
    settings.STEELYARD_PATH_ROOTS = (tmp_path,)
    spec = factories.spec(model={"source": "path", "path": str(tmp_path / "nothing")}, dataset=None)
    study = services.study_submit(team=factories.team(), spec=spec)
    for row in selectors.experiments(study):
        assert (row.status, factories.failure(row)["kind"]) == ("failed", "bad_model")
        assert "nothing" in factories.failure(row)["message"]


def test_a_path_outside_the_offered_folders_is_refused_and_nothing_is_created(
    tmp_path: Path, settings: Settings
) -> None:
    settings.STEELYARD_PATH_ROOTS = (tmp_path / "offered",)
    (tmp_path / "offered").mkdir()
    (tmp_path / "offered" / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "offered" / ".." / "secret", tmp_path / "offered" / "link"):
        spec = factories.spec(model={"source": "path", "path": str(path)}, dataset=None)
        with pytest.raises(Invalid) as refused:
            services.study_submit(team=factories.team(), spec=spec)
        assert refused.value.fields[0].path == "model.path"
    assert not Study.objects.exists()


def test_a_senseless_recipe_is_refused_and_nothing_is_created() -> None:
    spec = parse(
        {
            **factories.spec().model_dump(mode="json"),
            "experiments": [
                {"name": "fp32"},
                {"name": "twice", "recipe": [{"technique": "int8-dynamic"}, {"technique": "int8-dynamic"}]},
            ],
        }
    )
    with pytest.raises(Invalid) as refused:
        services.study_submit(team=factories.team(), spec=spec)
    assert refused.value.fields[0].path == "experiments.1.recipe"
    assert not Study.objects.exists()


def test_a_viewer_may_not_submit() -> None:
    team = factories.team()
    with pytest.raises(Forbidden, match="submitter"):
        services.study_submit(team=team, spec=factories.spec(), user=factories.user(team, Role.VIEWER))
    with pytest.raises(Forbidden, match="not a member"):
        services.study_submit(team=team, spec=factories.spec(), user=factories.user())


def test_the_same_key_and_body_give_the_first_study() -> None:
    team = factories.team()
    first, second = (
        services.study_submit(team=team, spec=factories.spec(), idempotency_key="k", body_sha256="a") for _ in range(2)
    )
    assert first == second
    assert Study.objects.count() == 1


def test_the_same_key_for_another_body_is_a_conflict() -> None:
    team = factories.team()
    services.study_submit(team=team, spec=factories.spec(), idempotency_key="k", body_sha256="a")
    with pytest.raises(Conflict):
        services.study_submit(team=team, spec=factories.spec(), idempotency_key="k", body_sha256="b")


def test_keys_are_per_team() -> None:
    studies = {
        services.study_submit(team=team, spec=factories.spec(), idempotency_key="k", body_sha256="a")
        for team in (factories.team(), factories.team())
    }
    assert len(studies) == 2


@pytest.mark.django_db(transaction=True)
def test_twenty_requests_with_one_key_make_one_study() -> None:
    """FC-049: all of them get it, none an error; there is no key without its study."""
    team, spec = factories.team(), factories.spec()
    answers = at_once(
        lambda: services.study_submit(team=team, spec=spec, idempotency_key="k", body_sha256="a"), threads=20
    )
    assert {type(answer) for answer in answers} == {Study}
    assert len(set(answers)) == Study.objects.count() == IdempotencyKey.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_submission_starts_at_once_where_a_worker_is_free() -> None:
    factories.worker()
    study = services.study_submit(team=factories.team(), spec=factories.spec())
    assert Attempt.objects.get().experiment == selectors.experiments(study)[0]
