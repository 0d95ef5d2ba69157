"""The specs in ``examples/`` are what people copy: each is valid, makes sense and can run on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import hardware
from experiments.preflight import preflight, senseless_problems
from experiments.protocols import Host
from experiments.spec import parse

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_makes_sense_and_nothing_of_it_is_refused(path: Path, tmp_path: Path) -> None:
    study = parse(path.read_text())
    assert senseless_problems(study) == []
    for experiment in study.expand():
        checked = preflight(experiment, Host(cache=tmp_path), hardware.devices())
        assert checked.failures == (), experiment.variant.name
