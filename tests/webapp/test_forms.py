"""The form of a new study: generated from the catalogue, judged by the spec, the same as YAML."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import QueryDict

from experiments import catalog
from experiments.spec import parse
from tests import factories
from tests.webapp import study_reports
from tests.webapp.pages import Visitor, text, visitor
from webapp.accounts.models import Role
from webapp.runs import preview, schema_fields, selectors
from webapp.runs.forms import StudyForm
from webapp.runs.models import Study
from webapp.runs.refill import expressible

pytestmark = pytest.mark.django_db


@pytest.fixture
def me() -> Visitor:
    return visitor()


def filled(*pairs: str, **changes: str) -> QueryDict:
    """The form as a browser sends it."""
    data = QueryDict(mutable=True)
    data.update(
        {
            "name": "a study",
            "model.source": "demo",
            "model.demo.name": "minilm-reviews",
            "dataset.source": "demo",
            "dataset.demo.name": "reviews",
            "baseline_runtime": "torch-eager",
            "technique.int8-dynamic.per_channel": "true",
            "token": "t-1",
        }
    )
    data.setlist("pair", list(pairs) or ["|torch-eager", "int8-dynamic|onnxruntime"])
    for name, value in changes.items():
        data[name] = value
    return data


def sent(data: QueryDict) -> dict[str, list[object]]:
    """The form for Django's client, every value of a repeated field included."""
    return {name: list(values) for name, values in data.lists()}


def with_field(name: str, value: str) -> QueryDict:
    """The form with one field changed."""
    data = filled()
    data[name] = value
    return data


# ------------------------------------------------------------------------------------------------- what it generates


def test_every_plugin_and_each_of_its_options_is_in_the_form(me: Visitor) -> None:
    html = me.page("/studies/new")
    for kind, prefix in (("techniques", "technique"), ("models", "model"), ("datasets", "dataset")):
        for row in catalog.describe()[kind]:
            for name, part in row["schema"]["properties"].items():
                if "const" not in part:
                    assert f'name="{prefix}.{row["name"]}.{name}' in html, (row["name"], name)
    for technique in catalog.plugins("technique"):
        for runtime in catalog.plugins("runtime"):
            assert f'value="{technique}|{runtime}"' in html


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "number"}, "0.5", 0.5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "", None),
        ({"type": "array", "items": {"type": "integer"}}, "1, 8,", [1, 8]),
        ({"type": "array", "items": {"type": "string"}}, "lm_head, *.down_proj", ["lm_head", "*.down_proj"]),
        ({"anyOf": [{"type": "boolean"}, {"const": "auto", "type": "string"}]}, "auto", "auto"),
        ({"anyOf": [{"type": "boolean"}, {"const": "auto", "type": "string"}]}, "false", False),
        ({"enum": ["a", "b"], "type": "string"}, "b", "b"),
        ({"type": "object"}, "{a: 1}", {"a": 1}),
        ({"type": "object"}, "{a: [", "{a: ["),
    ],
)
def test_a_schema_says_what_typed_text_becomes(schema: dict[str, Any], typed: str, value: Any) -> None:
    (field,) = schema_fields.fields({"properties": {"x": schema}}, "p", "p", frozenset())
    assert schema_fields.parse(field, {"p.x": typed}) == value


def test_a_mapping_of_known_keys_has_one_input_a_key() -> None:
    schema = {
        "type": "object",
        "propertyNames": {"enum": ["text", "label"]},
        "additionalProperties": {"type": "string"},
    }
    (field,) = schema_fields.fields({"properties": {"columns": schema}}, "d", "dataset", frozenset())
    assert field.keys == ("text", "label")
    assert schema_fields.parse(field, {"d.columns.label": "stars", "d.columns.text": ""}) == {"label": "stars"}


# ------------------------------------------------------------------------------------------------------ what it makes


def test_the_form_the_yaml_and_the_cli_make_the_same_experiments() -> None:
    form = StudyForm(filled("|torch-eager", "|onnxruntime", "int8-dynamic|onnxruntime", "fp16|torch-eager"))
    study = form.study()
    assert study is not None
    assert parse(form.yaml()) == study
    assert [v.name for v in study.experiments] == ["fp32", "fp32-onnxruntime", "int8-dynamic-onnxruntime", "fp16"]
    assert study.baseline == "fp32"
    written = yaml.safe_load(form.yaml())
    assert written["experiments"][2] == {
        "name": "int8-dynamic-onnxruntime",
        "recipe": [{"technique": "int8-dynamic"}],
        "runtime": "onnxruntime",
    }  # defaults are left out


def test_the_baseline_may_run_elsewhere_and_names_follow() -> None:
    data = filled("|torch-eager", "int8-dynamic|onnxruntime")
    data["baseline_runtime"] = "onnxruntime"
    study = StudyForm(data).study()
    assert study is not None
    assert [v.name for v in study.experiments] == ["fp32", "fp32-torch-eager", "int8-dynamic"]
    assert study.experiments[0].runtime.kind == "onnxruntime"


def test_options_of_a_technique_reach_its_step() -> None:
    data = filled("int8-dynamic|onnxruntime")
    data["technique.int8-dynamic.keep"] = "classifier, *.pooler"
    del data["technique.int8-dynamic.per_channel"]
    study = StudyForm(data).study()
    assert study is not None
    step = study.experiments[1].recipe[0].model_dump()
    assert step["keep"] == ("classifier", "*.pooler")
    assert step["per_channel"] is False


def test_a_stored_study_fills_the_form_with_itself() -> None:
    spec = parse(study_reports.study_spec(workload={"batch_sizes": [1, 4], "min_seconds": 0.5}, seed=7))
    stored = spec.model_dump(mode="json")
    assert expressible(stored)
    again = StudyForm(initial=stored).study()
    assert again is not None
    assert again.model_dump(mode="json") == stored


# ------------------------------------------------------------------------------------------------------------- chains


def chained(*recipes: tuple[str, ...], typed: dict[str, str] | None = None) -> QueryDict:
    """The form with these recipes of several steps, and what was typed into some fields of theirs."""
    data = filled("|torch-eager")
    data.setlist("chain", [str(number) for number in range(len(recipes))])
    for number, recipe in enumerate(recipes):
        data.setlist(f"chain.{number}.step", [str(step) for step in range(len(recipe))])
        data[f"chain.{number}.runtime"] = "torch-eager"
        for step, technique in enumerate(recipe):
            data[f"chain.{number}.{step}.technique"] = data[f"chain.{number}.{step}.shown"] = technique
    for name, value in (typed or {}).items():
        data[name] = value
    return data


def edited(data: QueryDict, what: str) -> StudyForm:
    form = StudyForm(data)
    form.edit(what)
    return form


def test_a_chain_is_one_experiment_with_settings_of_its_own() -> None:
    data = chained(
        ("prune-magnitude", "int8-dynamic"),
        typed={"chain.0.name": "small", "chain.0.0.amount": "0.3", "chain.0.1.keep": "classifier"},
    )
    data["technique.int8-dynamic.keep"] = "for the card alone"
    study = StudyForm(data).study()
    assert study is not None
    assert [v.name for v in study.experiments] == ["fp32", "small"]
    prune, int8 = study.experiments[1].recipe
    assert (prune.model_dump()["amount"], int8.model_dump()["keep"]) == (0.3, ("classifier",))


def test_a_chain_without_a_name_is_named_after_its_steps_and_told_apart() -> None:
    study = StudyForm(chained(("fp16",), ("fp16",), ("fp16",))).study()
    assert study is not None
    assert [v.name for v in study.experiments] == ["fp32", "fp16", "fp16-2", "fp16-3"]


@pytest.mark.parametrize(
    ("what", "order", "focus"),
    [
        ("up:0:1", ["b", "a", "c"], "chain-0-1-down"),
        ("down:0:1", ["a", "c", "b"], "chain-0-1-up"),
        ("up:0:2", ["a", "c", "b"], "chain-0-2-up"),
        ("up:0:0", ["a", "b", "c"], "chain-0-0-technique"),
        ("remove-step:0:1", ["a", "c"], "chain-0-add"),
        ("up:0:9", ["a", "b", "c"], ""),
        ("remove:9", ["a", "b", "c"], ""),
        ("", ["a", "b", "c"], ""),
    ],
)
def test_steps_move_and_go_and_nothing_typed_is_lost(what: str, order: list[str], focus: str) -> None:
    data = chained(("int8-dynamic", "int8-dynamic", "int8-dynamic"))
    for step, name in enumerate("abc"):
        data[f"chain.0.{step}.keep"] = name
    form = edited(data, what)
    (chain,) = form.chains
    assert [next(f.text for f in step.fields if f.label == "Keep") for step in chain.steps] == order
    assert form.focus == focus
    assert form.name.text == "a study"


def test_a_new_step_has_its_defaults_and_the_focus() -> None:
    form = edited(chained(("fp16",)), "add-step:0")
    (chain,) = form.chains
    assert [step.number for step in chain.steps] == [1, 2]
    assert form.focus == "chain-0-1-technique"
    assert form.said == "Step 2 was added."


def test_another_technique_keeps_what_both_have_and_defaults_the_rest() -> None:
    data = chained(("fp16",), typed={"chain.0.0.keep": "Softmax", "chain.0.0.technique": "int8-dynamic"})
    (chain,) = edited(data, "technique:0:0").chains
    fields = {field.name.rsplit(".", 1)[-1]: field for field in chain.steps[0].fields}
    assert fields["keep"].text == "Softmax"
    assert fields["per_channel"].checked  # its default; an unticked box would have said no


def test_recipes_are_added_and_removed() -> None:
    form = edited(chained(("fp16",)), "add")
    assert [chain.key for chain in form.chains] == ["0", "1"]
    assert edited(chained(("fp16",), ("bf16",)), "remove:0").chains[0].steps[0].technique == "bf16"


def test_there_is_an_end_to_recipes_and_steps() -> None:
    assert len(edited(chained(*[("fp16",)] * 60), "add").chains) == 40
    (chain,) = edited(chained(("fp16",) * 30), "add-step:0").chains
    assert len(chain.steps) == 16 and chain.full


def test_a_senseless_chain_is_refused_at_its_recipe(me: Visitor) -> None:
    form = StudyForm(chained(("int8-dynamic", "prune-magnitude")))
    seen = preview.of_form(form)
    assert not seen.can_submit
    assert "prune-magnitude can't come after int8-dynamic" in form.chains[0].error
    answer = me.client.post("/studies/new", sent(chained(("int8-dynamic", "prune-magnitude"))))
    assert answer.status_code == 422
    assert "can&#x27;t come after int8-dynamic" in answer.content.decode()


def test_a_refused_step_says_why_and_the_other_experiments_can_be_queued(me: Visitor) -> None:
    data = chained(("bf16",))
    data["chain.0.runtime"] = "onnxruntime"
    form = StudyForm(data)
    seen = preview.of_form(form)
    assert seen.can_submit
    (chain,) = form.chains
    assert "bf16" in (chain.error + chain.steps[0].error)


def test_an_error_in_a_setting_stands_at_that_step() -> None:
    data = chained(
        ("prune-magnitude", "int8-dynamic"), typed={"chain.0.0.amount": "2", "chain.0.1.reduce_range": "sometimes"}
    )
    form = StudyForm(data)
    assert form.study() is None
    assert {f.path for f in form.every_field() if f.error} == {"chain.0.0.amount", "chain.0.1.reduce_range"}
    assert form.unplaced == []


def test_a_stored_study_with_chains_and_own_names_fills_the_form_with_itself() -> None:
    spec = parse(
        study_reports.study_spec(
            experiments=[
                {"name": "fp32"},
                {"name": "int8-dynamic", "recipe": [{"technique": "int8-dynamic"}]},
                {"name": "my own", "recipe": [{"technique": "int8-dynamic", "keep": ["classifier"]}]},
                {
                    "name": "chain",
                    "recipe": [
                        {"technique": "prune-magnitude", "amount": 0.25},
                        {"technique": "int8-dynamic", "per_channel": False},
                    ],
                },
            ]
        )
    )
    stored = spec.model_dump(mode="json")
    assert expressible(stored)
    form = StudyForm(initial=stored)
    again = form.study()
    assert again is not None
    assert again.model_dump(mode="json") == stored
    assert [chain.name.text for chain in form.chains] == ["my own", "chain"]


def test_a_baseline_keeps_the_name_that_it_had() -> None:
    spec = parse(
        study_reports.study_spec(
            baseline="base", experiments=[{"name": "base"}, {"name": "fp32", "recipe": [{"technique": "fp16"}]}]
        )
    )
    again = StudyForm(initial=spec.model_dump(mode="json")).study()
    assert again == spec


def test_a_large_grid_is_for_yaml() -> None:
    assert not expressible({"experiments": [{"name": str(n)} for n in range(41)]})


def test_two_sets_of_options_of_one_runtime_are_for_yaml() -> None:
    runtimes = [{"kind": "onnxruntime"}, {"kind": "onnxruntime", "optimization": "basic"}]
    stored = {"experiments": [{"name": str(n), "runtime": r} for n, r in enumerate(runtimes)]}
    assert not expressible(stored)


def test_the_fragment_of_an_edit_keeps_what_was_typed_and_asks_for_a_preview(me: Visitor) -> None:
    data = chained(("prune-magnitude",), typed={"chain.0.0.amount": "0.125", "do": "add-step:0"})
    answer = me.client.post("/studies/recipes", sent(data))
    html = answer.content.decode()
    assert answer["HX-Trigger-After-Settle"] == "recipes-changed"
    assert 'value="0.125"' in html
    assert 'id="chain-0-1-technique"' in html
    assert "Step 2 was added." in html


def test_values_that_suit_the_model_are_offered_at_their_fields(me: Visitor) -> None:
    form = StudyForm(chained(("prune-structured",)))
    form.hint("experiments.1.recipe.0.multiple", [8, 16, 32])
    form.hint_technique("prune-structured", "amount", {"min": 0.1, "max": 0.9})
    hints = {field.path: (field.hint, field.valid) for field in form.hinted}
    assert hints["chain.0.0.multiple"] == ("For this model: 8, 16, 32.", ("8", "16", "32"))
    assert hints["technique.prune-structured.amount"] == ("For this model: 0.1 to 0.9.", ())


def test_where_training_rows_come_from_is_said(me: Visitor) -> None:
    said = preview.of_form(StudyForm(filled())).splits
    assert said == "Steps that train or calibrate learn from split 'train', never from 'test'."


# ---------------------------------------------------------------------------------------------------------- its errors


@pytest.mark.parametrize(
    ("field", "typed", "message"),
    [
        ("name", "", "can't be empty"),
        ("name", "x" * 201, "at most 200"),
        ("workload.batch_sizes", "1, 0", "greater than or equal to 1"),
        ("workload.batch_sizes", "1, one", "valid integer"),
        ("workload.sequence_length", "-5", "greater than or equal to 1"),
        ("workload.min_seconds", "soon", "valid number"),
        ("workload.min_seconds", "nan", "finite"),
        ("dataset.demo.limit", "0", "greater than or equal to 1"),
        ("seed", "-1", "greater than or equal to 0"),
        ("resources.memory_mib", "1", "greater than or equal to 64"),
        ("model.demo.name", "minilm", "is not one of"),
    ],
)
def test_an_error_stands_at_its_field_and_nothing_typed_is_lost(
    me: Visitor, field: str, typed: str, message: str
) -> None:
    answer = me.client.post("/studies/new", sent(with_field(field, typed)))
    html = answer.content.decode()
    assert answer.status_code == 422
    said = re.search(
        rf'<span class="error" id="f-{re.escape(field.replace(".", "-"))}-error"[^>]*>([^<]*)</span>', html
    )
    assert said is not None
    assert message in said[1].replace("&#x27;", "'"), said[1]
    if field != "model.demo.name":
        assert f'value="{typed}"' in html
    assert Study.objects.count() == 0


def test_an_error_in_an_option_stands_at_the_techniques_option() -> None:
    data = filled("|torch-eager", "int8-dynamic|onnxruntime")
    data["technique.int8-dynamic.reduce_range"] = "sometimes"
    form = StudyForm(data)
    assert form.study() is None
    assert {f.path for f in form.every_field() if f.error} == {"technique.int8-dynamic.reduce_range"}
    assert form.unplaced == []


def test_a_pair_that_cannot_be_done_says_why_before_it_is_ticked(me: Visitor) -> None:
    html = me.page("/studies/new")
    box = re.search(r'<input type="checkbox" name="pair" value="bf16\|onnxruntime"[^>]*>', html)
    assert box is not None
    assert "disabled" in box[0]
    why = re.search(r'data-refusal="p-bf16-on-onnxruntime"[^>]*>([^<]+)<', html)
    assert why is not None
    assert "bfloat16" in why[1]


def test_the_preview_lists_what_would_be_made_and_changes_no_input(me: Visitor) -> None:
    answer = me.client.post("/studies/preview", sent(filled("|torch-eager", "|onnxruntime", "fp16|torch-eager")))
    html = answer.content.decode()
    assert "3 experiments" in html
    assert "Queue 3 experiments" in html
    assert "name: fp32-onnxruntime" in html
    assert not re.search(r"<(input|textarea|select|button|details)\b", html)
    assert Study.objects.count() == 0


def test_the_preview_puts_errors_at_their_fields(me: Visitor) -> None:
    html = me.client.post("/studies/preview", sent(with_field("workload.sequence_length", "0"))).content.decode()
    assert "One thing to mend first" in html
    assert re.search(r'id="f-workload-sequence_length-error"[^>]*hx-swap-oob="true">[^<]*greater than or equal', html)


def test_a_model_that_is_not_there_is_said_before_anything_is_queued(me: Visitor, tmp_path: Any, settings: Any) -> None:
    settings.STEELYARD_PATH_ROOTS = (tmp_path,)
    data = filled()
    data["model.source"] = "path"
    data["model.path.path"] = str(tmp_path / "nothing")
    seen = preview.of_form(form := StudyForm(data))
    assert not seen.can_submit
    assert any("nothing" in f.error for f in form.every_field() if f.path == "model.path") or seen.problems


# ----------------------------------------------------------------------------------------------------- sending it


def test_a_sent_form_makes_one_study_however_often_it_is_clicked(me: Visitor) -> None:
    data = filled("|torch-eager", "int8-dynamic|onnxruntime")
    first = me.client.post("/studies/new", sent(data))
    second = me.client.post("/studies/new", sent(data))
    assert first.status_code == 302
    assert first["Location"] == second["Location"]
    study = Study.objects.get()
    assert first["Location"] == f"/studies/{study.pk}"
    assert [e.name for e in selectors.experiments(study)] == ["fp32", "int8-dynamic-onnxruntime"]
    assert study.created_by == me.user


def test_each_form_has_its_own_token(me: Visitor) -> None:
    tokens = {re.search(r'name="token" value="([^"]+)"', me.page("/studies/new"))[1] for _ in range(2)}  # type: ignore[index]
    assert len(tokens) == 2


def test_pasted_yaml_makes_the_same_study_as_the_form(me: Visitor) -> None:
    form = StudyForm(filled("|torch-eager", "int8-dynamic|onnxruntime"))
    answer = me.client.post("/studies/new", {"mode": "yaml", "yaml": form.yaml(), "token": "a"})
    assert answer.status_code == 302
    spec = form.study()
    assert spec is not None
    assert Study.objects.get().spec == spec.model_dump(mode="json")


def test_an_uploaded_file_counts_instead_of_the_text(me: Visitor) -> None:
    spec = yaml.safe_dump(study_reports.study_spec(["fp32", "fp16"])).encode()
    upload = SimpleUploadedFile("study.yaml", spec)
    answer = me.client.post("/studies/new", {"mode": "yaml", "yaml": "other", "file": upload, "token": "b"})
    assert answer.status_code == 302
    assert Study.objects.get().name == "Reviews classifier, smaller"


@pytest.mark.parametrize(
    ("yaml_text", "path", "message"),
    [
        ("name: [", "", "not valid YAML"),
        ("just words", "", "must be a mapping"),
        ("", "", "must be a mapping"),
        ("name: x\nbaselin: fp32\n", "baselin", "did you mean"),
        (
            yaml.safe_dump(
                study_reports.study_spec(experiments=[{"name": "fp32", "recipe": [{"technique": "int8-dynamc"}]}])
            ),
            "experiments.0.recipe.0",
            "int8-dynamic",
        ),
        ("a: &a [1]\nb: *a\n", "", "aliases"),
    ],
)
def test_a_bad_spec_is_answered_with_path_and_sentence(me: Visitor, yaml_text: str, path: str, message: str) -> None:
    for url in ("/studies/new", "/studies/preview"):
        answer = me.client.post(url, {"mode": "yaml", "yaml": yaml_text, "token": "c"})
        said = text(answer.content.decode())
        assert path in said
        assert message in said.replace("&#x27;", "'")
        assert "Traceback" not in said
    assert Study.objects.count() == 0


def test_a_spec_over_one_megabyte_is_refused(me: Visitor) -> None:
    upload = SimpleUploadedFile("big.yaml", b"name: x\n#" + b"x" * 1_500_000)
    answer = me.client.post("/studies/new", {"mode": "yaml", "yaml": "", "file": upload, "token": "d"})
    assert answer.status_code == 422
    assert "at most 1,000,000 bytes" in answer.content.decode()


def test_a_viewer_gets_no_form() -> None:
    assert "needs the role submitter" in text(visitor(Role.VIEWER).page("/studies/new", status=403))


def test_run_again_opens_the_form_filled_with_the_study(me: Visitor) -> None:
    study = study_reports.waiting_study(me.team, names=["fp32", "fp16"], name="the study before")
    html = me.page(f"/studies/new?from={study.pk}")
    assert 'value="the study before"' in html
    assert re.search(r'value="fp16\|torch-eager"[^>]*checked', html)
    assert not re.search(r'value="int8-dynamic\|torch-eager"[^>]*checked', html)


def test_run_again_of_what_the_form_cannot_say_opens_its_yaml(me: Visitor) -> None:
    gate = {"rules": [{"experiment": "int8", "metric": "accuracy", "max_drop": 0.01}]}
    study = factories.study(me.team, ("fp32", "int8"), gate=gate)
    html = me.page(f"/studies/new?from={study.pk}")
    assert "max_drop: 0.01" in html
    assert "<textarea" in html
