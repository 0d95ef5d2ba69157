"""One box to tick in the form: a technique, or the model as it is, on a runtime."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.spec import Variant

#: Name of the experiment that leaves the model as it is.
AS_IS = "fp32"


@dataclass(frozen=True)
class Pair:
    """A technique (None: the model as it is) on a runtime."""

    technique: str | None
    runtime: str

    @classmethod
    def of(cls, value: str) -> Pair:
        """From a box's value, ``technique|runtime``."""
        technique, _, runtime = value.partition("|")
        return cls(technique or None, runtime)

    @property
    def value(self) -> str:
        """The box's value."""
        return f"{self.technique or ''}|{self.runtime}"

    def name(self, baseline_runtime: str) -> str:
        """Name of the experiment: the technique, and the runtime where it is not the baseline's."""
        return "-".join([self.technique or AS_IS, *([] if self.runtime == baseline_runtime else [self.runtime])])


def default_runtime() -> str:
    """The runtime that a variant has if it names none."""
    kind: str = Variant(name="as is").runtime.kind
    return kind
