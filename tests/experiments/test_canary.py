"""Nothing is timed that does not answer sensibly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from experiments import canary
from experiments.records import Canary, ExperimentError, FailureKind

SOURCE = np.array([[1.0, -2.0], [0.5, 3.0]], dtype=np.float32)


def folder(
    root: Path, name: str, batch: npt.NDArray[np.float32], single: npt.NDArray[np.float32] | None = None
) -> Path:
    made = root / name
    made.mkdir()
    np.save(made / "batch.npy", batch)
    np.save(made / "single.npy", batch if single is None else single)
    return made


def judge(
    root: Path,
    made: npt.NDArray[np.float32],
    *,
    single: npt.NDArray[np.float32] | None = None,
    fresh: npt.NDArray[np.float32] | None = None,
    reference: npt.NDArray[np.float32] | None = None,
    quantized: bool = False,
    fused: bool = False,
    dtype: str = "float32",
) -> Canary:
    folder(root, "source", SOURCE)
    folder(root, "reference", SOURCE if reference is None else reference)
    folder(root, "built", made)
    return canary.inspect(
        root,
        folder(root, "fresh", made if fresh is None else fresh, single),
        dtype=dtype,
        quantized=quantized,
        fused=fused,
    )


def failure(root: Path, made: npt.NDArray[np.float32], **arguments: object) -> ExperimentError:
    with pytest.raises(ExperimentError) as caught:
        judge(root, made, **arguments)  # type: ignore[arg-type]
    return caught.value


def test_an_equal_artifact_passes_with_its_differences_told(tmp_path: Path) -> None:
    checked = judge(tmp_path, SOURCE)
    assert (checked.batch_difference, checked.source_difference, checked.round_trip_difference) == (0, 0, 0)


def test_a_model_that_was_pruned_or_trained_is_held_to_the_module_it_became(tmp_path: Path) -> None:
    changed = SOURCE + np.float32(0.5)
    checked = judge(tmp_path, changed, reference=changed)
    assert checked.passed
    assert checked.source_difference == pytest.approx(0.5, rel=1e-3)


def test_a_runtime_that_fuses_operators_is_held_to_the_number_format_not_to_the_last_digit(tmp_path: Path) -> None:
    fresh = SOURCE + np.float32(0.05)
    (tmp_path / "exact").mkdir()
    error = failure(tmp_path / "exact", SOURCE, fresh=fresh, dtype="bfloat16")
    assert error.failure.kind is FailureKind.BAD_MODEL
    (tmp_path / "fused").mkdir()
    assert judge(tmp_path / "fused", SOURCE, fresh=fresh, dtype="bfloat16", fused=True).passed


def test_an_export_that_differs_from_its_source_fails_with_the_numbers(tmp_path: Path) -> None:
    error = failure(tmp_path, SOURCE + np.float32(0.1))
    assert error.failure.kind is FailureKind.CANARY
    assert error.failure.detail["source_difference"] == pytest.approx(0.1, rel=1e-3)


def test_padding_that_changes_the_answer_fails(tmp_path: Path) -> None:
    assert failure(tmp_path, SOURCE, single=SOURCE + np.float32(0.2)).failure.kind is FailureKind.CANARY


def test_a_quantized_artifact_is_recorded_not_judged(tmp_path: Path) -> None:
    checked = judge(tmp_path, SOURCE + np.float32(0.4), quantized=True, dtype="int8")
    assert checked.passed
    assert checked.tolerance is None
    assert checked.source_difference == pytest.approx(0.4, rel=1e-3)


def test_bfloat16_is_allowed_its_own_rounding(tmp_path: Path) -> None:
    assert judge(tmp_path, SOURCE + np.float32(0.05), dtype="bfloat16").passed


@pytest.mark.parametrize("quantized", [False, True])
def test_outputs_that_are_not_finite_are_never_timed(tmp_path: Path, quantized: bool) -> None:
    broken = SOURCE.copy()
    broken[0, 0] = np.nan
    error = failure(tmp_path, broken, quantized=quantized)
    assert error.failure.kind is FailureKind.CANARY
    assert error.failure.detail["nonfinite"] == 2  # in the batch and alone


@pytest.mark.parametrize("quantized", [False, True])
def test_an_artifact_that_answers_differently_in_a_fresh_process_is_not_offered(
    tmp_path: Path, quantized: bool
) -> None:
    error = failure(tmp_path, SOURCE, fresh=SOURCE + np.float32(0.01), quantized=quantized)
    assert error.failure.kind is FailureKind.BAD_MODEL
