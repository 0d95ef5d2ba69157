"""What each step of a recipe did, on the experiment's page; and the textbook on the study's."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.records import LayerSensitivity, Report, StepEffect
from tests import factories
from tests.webapp import study_reports
from tests.webapp.pages import Visitor, text, visitor
from tests.webapp.test_artifacts import built
from webapp.runs import selectors, services
from webapp.runs.models import Attempt, Experiment
from webapp.runs.steps import figures, steps


def report(*effects: StepEffect, recipe: tuple[str, ...] = ("int8-dynamic",)) -> Report:
    spec = {
        "variant": {"name": "x", "recipe": [{"technique": name, "keep": ["a", "b"]} for name in recipe]},
        "baseline": {"name": "fp32"},
    }
    return Report(experiment="x", baseline="fp32", task="t", spec=spec, status="succeeded", effects=effects)


def effect(**changes: object) -> StepEffect:
    return StepEffect.model_validate({"technique": "int8-dynamic", "summary": "done", "changed": 1, "of": 1, **changes})


def test_sensitivity_is_shown_most_sensitive_first_whatever_the_order() -> None:
    layers = tuple(
        LayerSensitivity(layer=name, divergence=d, kept=kept)
        for name, d, kept in (("low", 0.01, False), ("high", 0.2, True), ("none", 0.0, False))
    )
    (step,) = steps(report(effect(sensitivity=layers, sensitivity_measure="KL in nats")))
    assert [(bar.layer, bar.width, bar.kept) for bar in step.sensitivity] == [
        ("high", 100.0, True),
        ("low", 5.0, False),
        ("none", 0.0, False),
    ]
    assert "high moves the answers most: 0.200 (KL in nats). 1 of 3 layers were kept wide." in step.sensitivity_summary


def test_layers_that_move_nothing_at_all_have_no_bar() -> None:
    (step,) = steps(report(effect(sensitivity=(LayerSensitivity(layer="a", divergence=0.0, kept=False),))))
    assert step.sensitivity[0].width == 0.0


def test_kept_layers_are_grouped_by_reason_and_folded_when_many() -> None:
    kept = {**{f"l{n}": "too sensitive" for n in range(5)}, "head": "tied"}
    (step,) = steps(report(effect(kept=kept)))
    assert step.kept == (("too sensitive", ("l0", "l1", "l2", "l3", "l4")), ("tied", ("head",)))
    assert step.folded
    assert not steps(report(effect(kept={"head": "tied"})))[0].folded


def test_a_training_has_its_loss_curve_with_a_sentence_and_a_table() -> None:
    losses = tuple((step, 1.0 / (1 + step)) for step in range(100))
    made = steps(report(effect(losses=losses)))
    (chart,) = [step.losses for step in made if step.losses]
    assert chart.summary == "The loss went from 1.00 to 0.0100 in 99 steps."
    assert chart.body[0] == ("0", "1.00") and chart.body[-1][0] == "99" and len(chart.body) <= 42
    assert list(figures(made)) == [chart.key]
    assert len(chart.figure["data"][0]["x"]) == 100


def test_a_step_without_an_effect_still_stands_in_the_recipe() -> None:
    made = steps(report(effect(), recipe=("int8-dynamic", "fp16")))
    assert [(step.technique, step.effect is None) for step in made] == [("int8-dynamic", False), ("fp16", True)]
    assert made[0].settings == (("keep", "a, b"),)


# ------------------------------------------------------------------------------------------------------------- pages


@pytest.fixture
def me(db: None) -> Visitor:
    factories.worker("cpu-a")
    return visitor()


def test_the_page_of_a_chain_tells_each_step(me: Visitor, tmp_path: Path) -> None:
    study = study_reports.waiting_study(me.team, names=["fp32", "int8-dynamic"])
    baseline, row = selectors.experiments(study)
    study_reports.run(baseline)
    study_reports.run(row, effects=study_reports.chain_effects(), artifact=built(tmp_path / "made"))
    services.artifact_store(attempt_id=Attempt.objects.get(experiment=row).pk)
    html = me.page(f"/experiments/{row.pk}")
    said = text(html)
    for words in (
        "Structured pruning",
        "5,312,064 parameters removed",
        "add a finetune step to get quality back",
        "9 layers left as they were",
        "The loss went from",
        "9 of 211 layers were kept wide",
        "Not done twice",
        "model minilm-reviews (9c04)",
    ):
        assert words in said, words
    assert html.count('class="bar"') == 211
    assert f'href="/api/v1/experiments/{row.pk}/artifact" download' in html
    assert 'id="figures"' in html and "style=" not in html.replace("<style id=", "")


def test_no_download_is_offered_of_what_is_not_stored(me: Visitor) -> None:
    study = study_reports.ended_study(me.team, names=["fp32", "fp16"])
    row = selectors.experiments(study)[1]
    html = me.page(f"/experiments/{row.pk}")
    assert "/artifact" not in html
    assert "It is being stored" in html


def test_a_training_is_followed_live(me: Visitor) -> None:
    row = selectors.experiments(study_reports.waiting_study(me.team))[0]
    study_reports.run(row, until="running")
    fragment = text(me.page(f"/experiments/{row.pk}/live"))
    assert "measure: block 9 of 14" in fragment
    assert "about 40 s left" in fragment
    assert Experiment.objects.get(pk=row.pk).message == "block 9 of 14"


def test_the_study_page_has_the_textbook_beside_what_came_out(me: Visitor) -> None:
    study = study_reports.ended_study(me.team)
    said = text(me.page(f"/studies/{study.pk}"))
    assert "What the textbook says" in said
    assert "1.8× to 2.2× faster" in said
    assert "This CPU has no bf16 units" in said
    assert "of its speed fp32-onnxruntime alone, the runtime without the technique, has 1.26×" in said


def test_a_study_without_a_technique_has_no_textbook(me: Visitor) -> None:
    study = study_reports.ended_study(me.team, names=["fp32", "fp32-onnxruntime"])
    assert "textbook" not in me.page(f"/studies/{study.pk}")
