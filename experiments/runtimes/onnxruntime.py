"""ONNX Runtime: the exported graph, measured without torch in the process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from experiments.parts.onnx_fusions import no_fusions
from experiments.parts.onnx_support import not_exportable
from experiments.protocols import Ask, BuildContext, DeviceKind, Runtime, Session, Technique


class OnnxRuntime(Runtime):
    """The model as one ONNX graph. Decoders carry their key-value cache as inputs and outputs."""

    title = "ONNX Runtime"
    summary = "Exports the model to ONNX and runs it with fused kernels; no torch in the measured process."
    origin = "https://onnxruntime.ai"

    kind: Literal["onnxruntime"] = "onnxruntime"
    optimization: Literal["disabled", "basic", "extended", "all"] = Field(
        default="all",
        description="How far ONNX Runtime rewrites the graph while loading it: not at all, constants and redundant "
        "nodes, fused nodes too, or memory layout besides.",
    )
    fusions: bool = Field(
        default=False,
        description="Write attention, normalization and activation blocks as single nodes into the file, where ONNX "
        "Runtime knows the model's family (BERT, GPT-2, Llama, ViT and their like).",
    )

    form = "onnx"
    devices = frozenset({"cpu", "cuda"})
    imports_torch = False

    def refuse(self, ask: Ask) -> str | None:
        """Model types without an export, or without fusions where those are asked for."""
        if ask.model is None:
            return None
        if why := not_exportable(ask.task, ask.model.model_type):
            return why
        return no_fusions(ask.model.model_type) if self.fusions else None

    def libraries(self) -> tuple[str, ...]:
        """Distributions whose versions belong to the fingerprint."""
        return ("onnxruntime-gpu", "onnxruntime", "onnx", "optimum", "optimum-onnx", "torch", "transformers", "numpy")

    def save(self, module: Any, folder: Path, context: BuildContext, steps: Sequence[Technique]) -> None:
        """Export ``module``; the ONNX ``steps`` are applied by the builder before ``finish``.

        Raises:
            ExperimentError: as ``parts.export.export_onnx``.
        """
        from experiments.parts.companions import copy_companions
        from experiments.parts.export import export_onnx

        export_onnx(module, folder, context.task)
        copy_companions(context.source, folder)

    def finish(self, folder: Path, context: BuildContext) -> tuple[str, ...]:
        """Fuse if asked for, load the final graph, run it once, and write the card.

        Raises:
            ExperimentError: ``no_effect`` if nothing could be fused, ``bad_model`` ('result does not load' or does not
                run), ``canary`` for non-finite outputs.
        """
        from experiments.parts.onnx_finish import finish_graph
        from experiments.parts.onnx_fusions import fuse

        told = (f"fused in the file: {fuse(folder, context)}",) if self.fusions else ()
        finish_graph(folder, context)
        return told

    def open(self, folder: Path, device: DeviceKind, threads: int) -> Session:
        """Load the graph; see ``parts.onnx_session``.

        Raises:
            ExperimentError: ``bad_model`` if it does not load, ``fallback`` if the device is not there.
        """
        from experiments.parts.artifact_card import read_card, read_config
        from experiments.parts.onnx_session import OnnxSession

        return OnnxSession(
            folder / "model.onnx", read_card(folder), read_config(folder), device, threads, self.optimization
        )
