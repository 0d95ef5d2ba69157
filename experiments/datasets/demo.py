"""Real data that needs no hub."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from experiments.parts.examples import first_rows
from experiments.parts.suits import check_suits
from experiments.protocols import DatasetSource, Examples, Host, Task
from experiments.records import ExperimentError, FailureKind


class DemoDataset(DatasetSource):
    """A demo dataset by name."""

    title = "Demo data"
    summary = "Review snippets, Python's own documentation, handwritten digits: real, small, no account needed."

    source: Literal["demo"] = "demo"
    name: Literal["reviews", "python-docs", "digits"]
    split: str = "test"
    limit: int | None = Field(default=None, ge=1, le=10_000_000)

    def usual_train_split(self) -> str | None:
        """``train``, unless that is what the experiment is judged on."""
        return "train" if self.split != "train" else None

    def display(self) -> str:
        """E.g. ``reviews/test``."""
        return f"{self.name}/{self.split}"

    def load(self, host: Host, task: Task, split: str | None = None, limit: int | None = None) -> Examples:
        """The first ``limit`` rows of a split; the rows were shuffled once with a fixed seed.

        Raises:
            ExperimentError: ``bad_dataset`` for an unknown split or a task that the data can't serve, ``download``.
        """
        from experiments.parts.digits import SPLITS, digits
        from experiments.parts.python_docs import python_docs
        from experiments.parts.reviews import reviews

        wanted = split or self.split
        if wanted not in SPLITS:
            raise ExperimentError(
                FailureKind.BAD_DATASET,
                f"demo data {self.name!r} has no split {wanted!r}",
                fix=f"Choose one of: {', '.join(SPLITS)}.",
                field="dataset.split",
            )
        match self.name:
            case "reviews":
                rows = reviews(host, wanted)
            case "python-docs":
                rows = python_docs(wanted)
            case "digits":
                rows = digits(wanted)
        check_suits(rows, task)
        return first_rows(rows, limit or self.limit)

    def peek(self, host: Host, task: Task, split: str | None = None) -> Examples | None:
        """All of it, unless the review snippets were never fetched."""
        from experiments.parts.reviews import is_here

        return self.load(host, task, split) if self.name != "reviews" or is_here(host) else None

    def stamp(self, host: Host) -> str:
        """Whether the review snippets are here."""
        from experiments.parts.reviews import is_here

        return str(self.name == "reviews" and is_here(host))
