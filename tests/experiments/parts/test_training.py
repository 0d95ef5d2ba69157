"""The training loop learns, repeats itself to the last bit, and tells how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import pytest
import torch

from experiments.parts.batches import batches_by_length
from experiments.parts.training import Plan, Progress, train
from experiments.records import ExperimentError, FailureKind


def batches() -> Iterator[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    while True:
        x = torch.randn(16, 4, generator=generator)
        yield {"x": x, "y": (x[:, 0] > x[:, 1]).long()}


def loss(module: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"])


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def test_it_learns_and_tells_progress() -> None:
    seen: list[Progress] = []
    module = model()
    losses = train(module, batches(), Plan(steps=150, learning_rate=0.02), seen.append, loss)
    assert sum(losses[-10:]) / 10 < 0.5 * losses[0]
    assert not module.training
    assert [p.step for p in seen] == list(range(1, 151)) and seen[-1].fraction == 1.0
    assert seen[-1].seconds_left == 0.0
    assert "step 150 of 150" in seen[-1].sentence("training it")


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_state_alone() -> None:
    before = torch.get_rng_state()
    made = []
    for _ in range(2):
        torch.set_rng_state(before)
        module = model()
        state = torch.get_rng_state()
        train(module, batches(), Plan(steps=20, learning_rate=0.01, seed=7), loss=loss)
        assert torch.equal(torch.get_rng_state(), state)
        made.append(torch.cat([p.flatten() for p in module.parameters()]))
    assert torch.equal(made[0], made[1])


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    with pytest.raises(ExperimentError, match="loss became") as caught:
        train(model(), batches(), Plan(steps=20, learning_rate=1e30, warmup=0.0, clip=1e30), loss=loss)
    assert caught.value.failure.kind is FailureKind.CANARY


def test_frozen_parameters_stay() -> None:
    module = model()
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    train(module, batches(), Plan(steps=5, learning_rate=0.1), loss=loss)
    assert torch.equal(before, module[0].weight)


def test_batches_hold_rows_of_like_length_and_each_row_once_an_epoch() -> None:
    lengths = [i % 37 for i in range(320)]
    epoch = list(islice(batches_by_length(lengths, 16, seed=0), 20))
    assert sorted(row for batch in epoch for row in batch) == list(range(320))
    spread = [max(lengths[r] for r in batch) - min(lengths[r] for r in batch) for batch in epoch]
    assert sum(spread) / len(spread) < 8
    assert epoch == list(islice(batches_by_length(lengths, 16, seed=0), 20))
    with pytest.raises(ValueError, match="fewer than one batch"):
        next(batches_by_length([1, 2], 16, seed=0))
