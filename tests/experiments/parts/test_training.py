"""The training loop learns, repeats itself to the last bit, and tells how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import pytest
import torch

from experiments.parts.batches import batches_by_length
from experiments.parts.checkpoints import Checkpoints
from experiments.parts.training import Plan, Progress, pruned_masks, thinned, train
from experiments.records import ExperimentError, FailureKind
from tests.experiments.building import in_fresh_process


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
    with pytest.raises(ExperimentError, match=r"became (nan|inf) at step") as caught:
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


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_a_killed_training_goes_on_and_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    program = """
    import os, signal, sys
    from pathlib import Path
    import torch
    from experiments.parts.checkpoints import Checkpoints
    from experiments.parts.training import Plan, train
    from tests.experiments.parts.test_training import batches, loss, model, weights

    torch.set_num_threads(1)
    die_at = values["die_at"]

    done = []

    def report(progress):
        done.append(progress.step)
        if progress.step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    module = model()
    kept = Checkpoints(Path(values["folder"]), every_seconds=0.0)
    losses = train(module, batches(), Plan(steps=40, learning_rate=0.01, seed=3), report, loss, checkpoints=kept)
    answer = {"losses": losses, "weights": weights(module).tolist(), "done": done}
    """
    folder = tmp_path / "checkpoints"
    with pytest.raises(AssertionError):
        in_fresh_process(program, folder=str(folder), die_at=23)
    (kept,) = [path for path in folder.iterdir() if path.name.startswith("step-")]
    step = int(kept.name.removeprefix("step-"))
    assert sorted(path.name for path in kept.iterdir()) == ["state.json", "state.safetensors"]  # nothing is pickled
    resumed = in_fresh_process(program, folder=str(folder), die_at=-1)
    assert resumed["done"] == list(range(step + 1, 41)) and 1 <= step <= 22
    module = model()
    losses = train(module, batches(), Plan(steps=40, learning_rate=0.01, seed=3), loss=loss)
    assert resumed["losses"] == losses
    assert resumed["weights"] == weights(module).tolist()


def test_a_checkpoint_of_another_plan_is_not_gone_on_from(tmp_path: Path) -> None:
    plan = Plan(steps=6, learning_rate=0.01)
    train(model(), batches(), plan, loss=loss, checkpoints=Checkpoints(tmp_path, at_end=True))
    again = train(
        model(), batches(), plan, lambda p: pytest.fail("it was done"), loss, checkpoints=Checkpoints(tmp_path)
    )
    assert len(again) == 6
    seen: list[Progress] = []
    other = Plan(steps=6, learning_rate=0.02)
    train(model(), batches(), other, seen.append, loss, checkpoints=Checkpoints(tmp_path))
    assert [p.step for p in seen] == [1, 2, 3, 4, 5, 6]


def test_pruned_weights_stay_zero(tmp_path: Path) -> None:
    module = model()
    with torch.no_grad():
        module[0].weight[:, 1] = 0
        module[0].bias[0] = 0
    masks = pruned_masks(module)
    assert list(masks) == ["0.weight"]
    train(module, batches(), Plan(steps=20, learning_rate=0.05), loss=loss, masks=masks)
    assert (module[0].weight[:, 1] == 0).all() and (module[0].weight[:, 0] != 0).all()
    assert module[0].bias[0] != 0


def test_the_step_at_which_the_loss_was_lost_is_named() -> None:
    def lost(module: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        calls.append(1)
        return loss(module, batch) * (float("nan") if len(calls) == 4 else 1)

    calls: list[int] = []
    module = model()
    with pytest.raises(ExperimentError, match="the loss became nan at step 4 of 20") as caught:
        train(module, batches(), Plan(steps=20, learning_rate=0.01), loss=lost)
    assert caught.value.failure.kind is FailureKind.CANARY
    assert caught.value.failure.detail == {"step": 4}
    assert torch.isfinite(weights(module)).all() and not module.training


def test_at_most_two_hundred_losses_are_told() -> None:
    losses = [float(i) for i in range(1, 1001)]
    told = thinned(losses)
    assert len(told) == 200 and told[0] == (1, 1.0) and told[-1] == (1000, 1000.0)
    assert thinned(losses[:3]) == ((1, 1.0), (2, 2.0), (3, 3.0))
    assert thinned([0.5]) == ((1, 0.5),) and thinned([]) == ()
