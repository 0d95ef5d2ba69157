"""What all techniques that train share: how long, how fast, on what. Torch-free."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from experiments.protocols import Ask, Form, Technique, Use


class TrainingStep(Technique):
    """A technique that changes weights by gradients, on the dataset's training rows."""

    steps: int = Field(default=200, ge=1, le=100_000, description="Batches to learn from.")
    learning_rate: float = Field(
        default=5e-5, gt=0, le=1, description="Peak rate of AdamW, reached after the warm-up; it falls to zero."
    )
    batch_size: int = Field(default=32, ge=1, le=4096, description="Rows (or windows of text) of one batch.")
    warmup: float = Field(default=0.1, ge=0, le=1, description="Share of the steps in which the rate rises.")
    weight_decay: float = Field(default=0.01, ge=0, le=1, description="Of matrices; biases and norms have none.")
    max_length: int | None = Field(
        default=None,
        ge=2,
        le=131_072,
        description="Tokens of a training row at most; by default the workload's sequence length.",
    )

    forms: ClassVar[frozenset[Form]] = frozenset({"torch"})
    alters: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    def needs(self) -> frozenset[Use]:
        """Training rows."""
        return frozenset({"train"})

    def refuse(self, ask: Ask) -> str | None:
        """Integer weights have no gradients, and a row can't be longer than the model allows."""
        if ask.model is not None and ask.model.quantized:
            return (
                f"the model is already quantized ({ask.model.quantized}) and integer weights can't be trained; "
                "choose its unquantized original"
            )
        longest = ask.model.max_length if ask.model is not None else None
        if self.max_length is not None and longest is not None and self.max_length > longest:
            return f"max_length {self.max_length:,} is more than the {longest:,} tokens that the model can hold"
        return None
