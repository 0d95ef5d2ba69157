"""A spec says where it is wrong and how to mend it, and expands to the experiments that were meant."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from experiments.spec import MAX_EXPERIMENTS, SpecError, StudySpec, parse


def study(**changes: Any) -> dict[str, Any]:
    return {
        "name": "reviews classifier, smaller",
        "model": {"source": "demo", "name": "minilm-reviews"},
        "dataset": {"source": "demo", "name": "reviews"},
        "baseline": "fp32",
        "experiments": [
            {"name": "fp32"},
            {"name": "int8", "recipe": [{"technique": "int8-dynamic"}], "runtime": "onnxruntime"},
        ],
        **changes,
    }


def problems(data: dict[str, Any] | str | bytes) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(data)
    return [str(problem) for problem in caught.value.problems]


def variant(**changes: Any) -> dict[str, Any]:
    return study(experiments=[{"name": "fp32"}, {"name": "x", **changes}])


@pytest.mark.parametrize(
    ("data", "path", "words"),
    [
        (variant(recipe=[{"technique": "int8-dynamc"}]), "experiments.1.recipe.0.technique", "mean 'int8-dynamic'?"),
        (variant(runtime="onxruntime"), "experiments.1.runtime", "did you mean 'onnxruntime'?"),
        (variant(recipe=[{"technique": "fp16", "bits": 3}]), "experiments.1.recipe.0.bits", "unknown field"),
        (study(datset={}), "datset", "did you mean 'dataset'?"),
        (study(workload={"batch_sizes": [1, -8]}), "workload.batch_sizes.1", "-8"),
        (study(workload={"sequence_length": 0}), "workload.sequence_length", "greater than or equal to 1"),
        (study(workload={"min_seconds": float("inf")}), "workload.min_seconds", "finite"),
        (study(dataset={"source": "demo", "name": "reviews", "limit": -5}), "dataset.limit", "-5"),
        (study(model={"source": "demo", "name": "<script>alert(1)</script>"}), "model.name", "minilm-reviews"),
        (study(model={"name": "minilm-reviews"}), "model", "'source'"),
        (study(task="text-clasification"), "task", "did you mean 'text-classification'?"),
        (study(baseline="fp3"), "", "did you mean 'fp32'?"),
        (study(experiments=[{"name": "fp32"}, {"name": "fp32"}]), "", "different names"),
        (study(gate={"rules": [{"experiment": "int8", "metric": "accurcy", "max_drop": 0}]}), "", "'accuracy'"),
        (study(gate={"rules": [{"experiment": "int8", "metric": "accuracy"}]}), "gate.rules.0", "max_drop"),
        (study(resources={"timeout_s": 0}), "resources.timeout_s", "greater than or equal to 1"),
        (study(schema_version=2), "schema_version", "is not 1"),
    ],
)  # fmt: skip
def test_every_problem_has_its_path_and_says_what_to_do(data: dict[str, Any], path: str, words: str) -> None:
    found = problems(data)
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}: " if path else ""), found
    assert words in found[0]


def test_all_problems_are_told_at_once() -> None:
    data = study(workload={"batch_sizes": [0], "sequence_length": -1}, task="nothing", nonsense=1)
    assert len(problems(data)) == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "just words",
        "{a: 1",
        "a: 1\na: 2",
        "a: &x [1]\nb: *x",
        "!!python/object/apply:os.system ['true']",
        "\x00",
        b"\xff\xfe\x00",
        "- " * 5000,
        "name: " + "x" * 1_000_001,
    ],
)
def test_hostile_text_is_one_clear_problem(text: str | bytes) -> None:
    found = problems(text)
    assert found
    assert all(len(problem) < 1000 for problem in found)


def test_yaml_and_json_mean_the_same() -> None:
    data = study()
    assert parse(yaml.safe_dump(data)) == parse(json.dumps(data), syntax="json") == parse(data)


def test_a_string_abbreviates_a_runtime_and_a_layout() -> None:
    short = parse(variant(runtime="onnxruntime", layout="single"))
    assert short == parse(variant(runtime={"kind": "onnxruntime"}, layout={"kind": "single"}))


def test_the_baseline_comes_first_and_every_experiment_is_complete() -> None:
    spec = parse(study(baseline="int8", resources={"timeout_s": 60}))
    expanded = spec.expand()
    assert [e.variant.name for e in expanded] == ["int8", "fp32"]
    assert [e.is_baseline for e in expanded] == [True, False]
    assert all(e.baseline.name == "int8" and e.resources.timeout_s == 60 for e in expanded)


def test_an_experiments_own_resources_win() -> None:
    data = study(resources={"timeout_s": 60})
    data["experiments"][1]["resources"] = {"timeout_s": 7}
    assert [e.resources.timeout_s for e in parse(data).expand()] == [60, 7]


@given(
    kinds=st.lists(st.sampled_from(["torch-eager", "onnxruntime"]), min_size=1, unique=True),
    channels=st.lists(st.booleans(), min_size=1, unique=True),
)
def test_a_grid_is_the_product_of_its_values(kinds: list[str], channels: list[bool]) -> None:
    grid = {"runtime.kind": kinds, "recipe.0.per_channel": channels}
    spec = parse(variant(recipe=[{"technique": "int8-dynamic"}], runtime={"kind": "torch-eager"}, grid=grid))
    made = [(v.runtime.kind, v.recipe[0].model_dump()["per_channel"]) for v in spec.experiments[1:]]
    assert made == list(itertools.product(kinds, channels))
    assert len({v.name for v in spec.experiments}) == len(spec.experiments)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"recipe.3.x": [1]}, "there is no 'recipe.3.x'"),
        ({"recipe.0.per_channel": []}, "non-empty list"),
        ({"a": list(range(100)), "b": list(range(100))}, "10,000"),
        ([1], "map a path"),
    ],
)
def test_a_senseless_grid_is_refused(grid: Any, words: str) -> None:
    found = problems(variant(recipe=[{"technique": "int8-dynamic"}], grid=grid))
    assert any(words in problem for problem in found), found


def test_too_many_experiments_are_refused() -> None:
    many = [{"name": str(i)} for i in range(MAX_EXPERIMENTS + 1)]
    assert str(MAX_EXPERIMENTS) in problems(study(experiments=many, baseline="0"))[0].replace(",", "")


@given(
    batch_sizes=st.lists(st.integers(1, 4096), min_size=1, max_size=8, unique=True),
    seconds=st.floats(0.01, 3600),
    seed=st.integers(0, 2**32 - 1),
    limit=st.none() | st.integers(1, 10_000),
)
def test_a_spec_survives_its_canonical_form(
    batch_sizes: list[int], seconds: float, seed: int, limit: int | None
) -> None:
    spec = parse(
        study(
            workload={"batch_sizes": batch_sizes, "min_seconds": seconds},
            seed=seed,
            dataset={"source": "demo", "name": "reviews", "limit": limit},
        )
    )
    again = StudySpec.model_validate(json.loads(json.dumps(spec.model_dump(mode="json"))))
    assert again == spec
    assert [e.sha256() for e in again.expand()] == [e.sha256() for e in spec.expand()]


def test_a_spec_can_not_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse(study()).name = "other"  # type: ignore[misc]


def test_the_hash_is_of_what_is_meant_not_of_how_it_is_written() -> None:
    explicit = study(workload={"batch_sizes": [1, 8], "sequence_length": 128}, seed=0)
    assert parse(explicit).expand()[1].sha256() == parse(study()).expand()[1].sha256()
    assert parse(study(seed=1)).expand()[1].sha256() != parse(study()).expand()[1].sha256()
