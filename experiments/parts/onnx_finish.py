"""The last step of an ONNX artifact: it loads and runs, or it is not offered (FC-069)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind


def finish_graph(folder: Path, context: BuildContext) -> None:
    """Check, load and run ``folder/model.onnx`` once on the CPU, then write its card.

    Raises:
        ExperimentError: ``bad_model`` if it does not load or run, ``canary`` naming the node if a result is not finite.
    """
    from experiments.parts.artifact_card import ArtifactCard, read_config, write_card
    from experiments.parts.onnx_graph import MODEL, check_graph, weights_bytes
    from experiments.parts.onnx_probe import open_quietly, synthetic_inputs
    from experiments.parts.onnx_session import OnnxSession

    path = folder / MODEL
    check_graph(path)
    config = read_config(folder)
    architecture = str((config.get("architectures") or ["unknown"])[0])
    card = ArtifactCard(form="onnx", task=context.task, architecture=architecture, weights_bytes=weights_bytes(path))
    try:
        session = OnnxSession(path, card, config, "cpu", context.threads)
        inputs = context.probe or synthetic_inputs(open_quietly(path, context.threads), config, context.seed)
        output = session.forward(inputs)
    except ExperimentError as error:
        if error.failure.kind is not FailureKind.BAD_MODEL:
            raise
        raise ExperimentError(FailureKind.BAD_MODEL, f"result does not load: {error.failure.message}") from error
    except Exception as error:  # onnxruntime's exceptions share no public base
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExperimentError(FailureKind.BAD_MODEL, f"result loads but does not run: {first}") from error
    bad = int(output.size - np.isfinite(output).sum())
    if bad:
        where = session.first_non_finite(inputs) or "the output"
        raise ExperimentError(
            FailureKind.CANARY,
            f"{bad} of {output.size} outputs are not finite; the first such value is at {where}",
            node=where,
        )
    write_card(folder, card)
