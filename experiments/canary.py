"""The canary: an artifact must answer sensibly before a second is spent on timing it.

Unquantized artifacts: finite, batch 1 equals the padded batch, and the artifact equals the module it was made from,
within a tolerance that its number format allows (pruned and trained models answer differently from their source on
purpose: that difference is recorded). Quantized artifacts: finite, the right shape, the difference recorded and shown.
Every artifact must answer in a fresh process as it did for its builder (the round trip).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.records import Canary, ExperimentError, FailureKind

#: Largest allowed difference as a share of the largest output, by the artifact's main dtype.
TOLERANCE = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1.5e-1}
#: The same files and threads must give the same answers up to the order of sums.
ROUND_TRIP = 1e-4


def inspect(built: Path, fresh: Path, *, dtype: str, quantized: bool, fused: bool = False) -> Canary:
    """Compare the probe outputs (``batch.npy``, ``single.npy``) of a built artifact with those of a fresh process.

    ``built`` holds the answers of the source model (``source``), of the module that an exact artifact must equal
    (``reference``: pruned or trained on purpose, not yet narrowed) and of the artifact in its builder (``built``).

    Args:
        dtype: the artifact's main number format.
        quantized: differences are recorded, not judged.
        fused: the fresh process computes in another order than the builder, which is judged as the format allows.

    Raises:
        ExperimentError: ``canary`` with the numbers, if an unquantized artifact differs or anything is not finite;
            ``bad_model`` if the round trip failed.
    """
    source, expected, made = (_load(built / name) for name in ("source", "reference", "built"))
    now = _load(fresh)
    for name, outputs in (("the source model", source), ("the changed model", expected), ("the artifact", now)):
        bad = sum(int(array.size - np.isfinite(array).sum()) for array in outputs.values())
        if bad:
            raise ExperimentError(
                FailureKind.CANARY,
                f"{bad:,} outputs of {name} are not finite (NaN or infinity); nothing was timed",
                fix="Keep the layers that overflow in a wider format, or check the weights for NaN.",
                nonfinite=bad,
            )
    if now["batch"].shape != expected["batch"].shape:
        raise ExperimentError(
            FailureKind.CANARY,
            f"the artifact answers with shape {now['batch'].shape}, its source with {expected['batch'].shape}",
        )
    scale = max(1.0, float(np.abs(expected["batch"]).max()))
    trip = _difference(now["batch"], made["batch"])
    if trip > (TOLERANCE.get(dtype, ROUND_TRIP) if fused else ROUND_TRIP) * max(
        scale, float(np.abs(made["batch"]).max())
    ):
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"the saved artifact answers differently in a fresh process: outputs differ by up to {trip:.3g}",
            fix="The artifact was not saved completely; it is not offered.",
            difference=trip,
        )
    batch = _difference(now["batch"], now["single"])
    exactness = _difference(now["batch"], expected["batch"])
    canary = Canary(
        passed=True,
        batch_difference=batch,
        source_difference=_difference(now["batch"], source["batch"]),
        round_trip_difference=trip,
        tolerance=None if quantized else TOLERANCE.get(dtype, 1e-3) * scale,
        notes=("quantized: differences are recorded, not judged",) if quantized else (),
    )
    if canary.tolerance is not None:
        for difference, what in (
            (batch, "batch 1 and the padded batch of 8 differ"),
            (exactness, "the artifact and the module that it was saved from differ"),
        ):
            if difference > canary.tolerance:
                raise ExperimentError(
                    FailureKind.CANARY,
                    f"{what} by up to {difference:.3g}, more than the {canary.tolerance:.3g} that {dtype} allows",
                    fix="Padding or the export changes what the model answers; its speed would not be worth knowing.",
                    **canary.model_dump(exclude={"passed"}),
                )
    return canary


def _load(folder: Path) -> dict[str, npt.NDArray[Any]]:
    return {name: np.load(folder / f"{name}.npy") for name in ("batch", "single")}


def _difference(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max()) if one.size else 0.0
