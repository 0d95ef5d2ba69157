"""Exports a live Hugging Face module to one ONNX graph, through optimum's per-architecture configurations.

Nothing here asks a hub: the task is given, the module is already in memory, and tokenizers are not touched.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from experiments.protocols import Task
from experiments.records import ExperimentError, FailureKind


def export_onnx(module: Any, folder: Path, task: Task) -> Path:
    """Write ``folder/model.onnx`` (weights over 2 GB in ``model.onnx_data``) and ``config.json``.

    A decoder becomes one graph with a key-value cache as input and output; it serves the prompt (empty cache) and
    every further token. A tied output head keeps sharing the embedding's tensor.

    Raises:
        ExperimentError: ``unsupported`` if there is no export for this architecture and task, ``bad_model`` if config
            and tensors contradict each other about a tie or the exported graph is not valid.
    """
    from experiments.parts.onnx_graph import MODEL, check_graph
    from experiments.parts.tied_weights import settle_ties

    settle_ties(module)
    module.eval()
    config = _onnx_config(module, task)
    target = folder / MODEL
    try:
        _export(module, config, target)
        config.post_process_exported_models(folder, {"model": (module, config)}, [MODEL])
    except ExperimentError:
        raise
    except Exception as error:  # torch, optimum and onnx raise dozens of kinds here; each means: no graph
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"the export of {type(module).__name__} to ONNX failed: {first}",
            fix="Choose runtime torch-eager for this model.",
        ) from error
    check_graph(target)
    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(folder)
    return target


def _onnx_config(module: Any, task: Task) -> Any:
    """Optimum's description of inputs, outputs and patches for this architecture."""
    import optimum.exporters.onnx.model_configs  # noqa: F401 - registers the architectures
    from optimum.exporters.tasks import TasksManager

    decoder = task == "text-generation"
    name = "text-generation-with-past" if decoder else task
    try:
        make = TasksManager.get_exporter_config_constructor(
            exporter="onnx", model=module, task=name, library_name="transformers"
        )
        return make(module.config, **({"use_past": True, "use_past_in_inputs": True} if decoder else {}))
    except (KeyError, ValueError) as error:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            f"models of type '{module.config.model_type}' have no ONNX export for {task}: {str(error).splitlines()[0]}",
            fix="Choose runtime torch-eager for this model.",
        ) from error


def _export(module: Any, config: Any, target: Path) -> None:
    import torch
    from optimum.exporters.onnx.convert import export

    was_returning = module.config.return_dict
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns of every shape that it looks at
        try:
            with torch.no_grad():
                export(module, config, target, device="cpu")
        finally:
            module.config.return_dict = was_returning
