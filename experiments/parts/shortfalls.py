"""Why a textbook's claim can fail on the machine of a report; reasons that several techniques share. Torch-free."""

from __future__ import annotations

from experiments.hardware.cpu import explain_slow
from experiments.records import Report


def no_units(report: Report, dtype: str) -> str | None:
    """Why products in ``dtype`` are slow on the report's CPU, or None: it has the units, or it was a GPU."""
    environment = report.environment
    if environment is None or any(device.kind != "cpu" for device in environment.devices):
        return None
    return explain_slow(dtype, environment.isa)


def left_wide(report: Report, technique: str) -> str | None:
    """What of the model the step left as wide as before, or None if its effect is not in the report."""
    effect = next((e for e in report.effects if e.technique == technique), None)
    if effect is None:
        return None
    untouched = f", and {len(effect.kept)} of {effect.of} layers too" if effect.kept else ""
    return f"only linear layers are stored small: embeddings and normalisation stay as they were{untouched}"


def wide_beside_integers(report: Report, technique: str, embeddings: bool) -> str | None:
    """What keeps an 8-bit artifact above a quarter of the size; ``embeddings``: their tables are integers too."""
    if embeddings:
        return "each channel and each row of a table has a scale of its own, and normalisation stays wide"
    return left_wide(report, technique)
