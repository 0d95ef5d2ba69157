"""Whether a dataset holds what a task needs."""

from __future__ import annotations

from experiments.protocols import Examples, Task
from experiments.records import ExperimentError, FailureKind


def check_suits(examples: Examples, task: Task) -> None:
    """Raise ``bad_dataset`` if ``examples`` lacks the input or the labels that ``task`` needs."""
    holds = "images" if examples.images is not None else "texts"
    needs = "images" if task == "image-classification" else "texts"
    if holds != needs:
        raise ExperimentError(
            FailureKind.BAD_DATASET,
            f"{examples.name} holds {holds}, but the task {task} needs {needs}",
            fix="Choose data of the right kind or another task.",
            field="dataset",
        )
    if task.endswith("classification") and examples.labels is None:
        raise ExperimentError(
            FailureKind.BAD_DATASET,
            f"{examples.name} has no labels, but the task {task} needs them",
            fix="Choose a labelled dataset, or map its label column in dataset.columns.label.",
            field="dataset",
        )
