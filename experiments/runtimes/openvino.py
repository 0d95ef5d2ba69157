"""OpenVINO: the same exported graph, compiled by Intel's runtime. An optional extra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from experiments.parts.onnx_support import not_exportable
from experiments.protocols import Ask, BuildContext, DeviceKind, Runtime, Session, Technique


class OpenVino(Runtime):
    """The model's ONNX graph, read and compiled by OpenVINO; computes in float32 what is stored in float32."""

    title = "OpenVINO"
    summary = (
        "Reads the exported ONNX graph and compiles it for this CPU; an optional extra, without torch in the process."
    )
    origin = "https://docs.openvino.ai"

    kind: Literal["openvino"] = "openvino"

    form = "onnx"
    devices = frozenset({"cpu"})
    imports_torch = False

    def refuse(self, ask: Ask) -> str | None:
        """Machines without the library, and model types without an export."""
        if find_spec("openvino") is None:
            return "OpenVINO is not installed here; install it with: pip install 'steelyard[openvino]'"
        return None if ask.model is None else not_exportable(ask.task, ask.model.model_type)

    def libraries(self) -> tuple[str, ...]:
        """Distributions whose versions belong to the fingerprint."""
        return ("openvino", "onnx", "optimum", "optimum-onnx", "torch", "transformers", "numpy")

    def save(self, module: Any, folder: Path, context: BuildContext, steps: Sequence[Technique]) -> None:
        """Export ``module`` just as for ONNX Runtime, so that one export serves both.

        Raises:
            ExperimentError: as ``parts.export.export_onnx``.
        """
        from experiments.parts.companions import copy_companions
        from experiments.parts.export import export_onnx

        export_onnx(module, folder, context.task)
        copy_companions(context.source, folder)

    def finish(self, folder: Path, context: BuildContext) -> tuple[str, ...]:
        """Check the graph by its rules and in the reference runtime, and write its card.

        Raises:
            ExperimentError: ``bad_model`` ('result does not load' or does not run), ``canary`` for non-finite outputs.
        """
        from experiments.parts.onnx_finish import finish_graph

        finish_graph(folder, context)
        return ()

    def open(self, folder: Path, device: DeviceKind, threads: int) -> Session:
        """Read and compile the graph; see ``parts.openvino_session``.

        Raises:
            ExperimentError: ``unsupported`` if OpenVINO knows an operator not, ``fallback`` if it chose another device.
        """
        from experiments.parts.artifact_card import read_card, read_config
        from experiments.parts.openvino_session import OpenVinoSession

        return OpenVinoSession(folder / "model.onnx", read_card(folder), read_config(folder), threads)
