"""Packed layers: saved once, counted once, opened by Steelyard and by the script beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.parts import packed_layers as registry
from experiments.parts.tied_weights import parameter_count, unique_bytes
from experiments.parts.torch_files import load_module, save_module
from experiments.records import ExperimentError
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments.building import bert, context, inputs_for, llama, outputs_of

_OUTSIDE = """
import sys
sys.modules["experiments"] = None  # importing it raises from here on
import numpy as np, torch
sys.path.insert(0, "{folder}")
from load import load
inputs = {{name: torch.from_numpy(array) for name, array in np.load("{inputs}").items()}}
with torch.inference_mode():
    np.save("{out}", load()(**inputs).logits.numpy())
"""


def answers_outside(folder: Path, inputs: dict[str, Any], work: Path) -> Any:
    """What ``folder``'s own ``load.py`` answers, in an isolated interpreter that has no Steelyard."""
    work.mkdir(parents=True, exist_ok=True)
    np.savez(work / "inputs.npz", allow_pickle=False, **inputs)
    program = _OUTSIDE.format(folder=folder, inputs=work / "inputs.npz", out=work / "out.npy")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd=work, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(work / "out.npy")


def test_an_artifact_answers_the_same_where_steelyard_is_not_installed(tmp_path: Path) -> None:
    inputs = inputs_for("text-generation")
    module, _ = Int8Dynamic().apply_torch(llama(), context(tmp_path, "text-generation"))
    expected = outputs_of(module, "text-generation", inputs)
    (tmp_path / "files").mkdir()
    save_module(module, tmp_path / "files")
    assert np.abs(answers_outside(tmp_path / "files", inputs, tmp_path / "outside") - expected).max() <= 1e-6


def test_packed_layers_count_the_parameters_that_they_stand_for(tmp_path: Path) -> None:
    wide = bert()
    before = parameter_count(wide)
    module, _ = Int8Dynamic().apply_torch(wide, context(tmp_path, "text-classification"))
    assert parameter_count(module) == before
    (tmp_path / "files").mkdir()
    save_module(module, tmp_path / "files")
    again = load_module(tmp_path / "files", "cpu")
    assert (parameter_count(again), unique_bytes(again)) == (before, unique_bytes(module))


def test_an_unknown_kind_of_layer_is_named(tmp_path: Path) -> None:
    module, _ = Int8Dynamic().apply_torch(bert(), context(tmp_path, "text-classification"))
    (tmp_path / "files").mkdir()
    save_module(module, tmp_path / "files")
    description = tmp_path / "files" / "quantization_config.json"
    description.write_text(description.read_text().replace("dynamic-int8-linear", "int7-linear"))
    with pytest.raises(ExperimentError, match="no packed layer called 'int7-linear'"):
        load_module(tmp_path / "files", "cpu")


def test_every_kind_is_registered_under_its_own_name() -> None:
    for name, kind in registry.packed_kinds(registry._KINDS).items():
        assert kind.method == name
