"""Blockwise codes by rounding, HQQ, GPTQ and AWQ, against their definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from experiments.parts.awq import channel_scales
from experiments.parts.block_codes import BlockCodes, Grid, in_blocks, round_to_nearest, values_per_block
from experiments.parts.calibration import LayerInputs
from experiments.parts.gptq import compensated, output_error
from experiments.parts.hqq import half_quadratic


def correlated(width: int, tokens: int = 4000) -> torch.Tensor:
    """Seeded inputs (tokens, width) whose channels depend on each other and differ in size."""
    torch.manual_seed(0)
    size = torch.rand(width).pow(3) * 2
    return torch.randn(tokens, width) @ torch.randn(width, width) * size


def weights(out: int = 48, width: int = 200) -> torch.Tensor:
    """Seeded weights with heavy tails."""
    torch.manual_seed(1)
    return torch.distributions.StudentT(4.0).sample((out, width)) * 0.05


def inputs_of(x: torch.Tensor) -> LayerInputs:
    """Statistics of ``x``."""
    return LayerInputs(x.t() @ x / len(x), x.abs().mean(0), x.norm(dim=0), x.abs().amax(0), len(x), "layer")


def error(codes: BlockCodes, weight: torch.Tensor, moment: torch.Tensor) -> float:
    """Mean squared error of the layer's outputs."""
    return output_error(codes.wide() - weight, moment)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(4, 16), (4, 128), (8, 32)])
def test_a_rounded_weight_is_half_a_step_away_at_most(bits: int, group: int, symmetric: bool) -> None:
    weight = weights()
    codes = round_to_nearest(weight, Grid(bits, group, symmetric))
    assert codes.codes.max() <= 2**bits - 1
    steps = codes.scales.abs().repeat_interleave(group, dim=1)[:, :200]
    apart = (codes.wide() - weight).abs()
    # The mirror image of the extreme (symmetric), or an end moved by the zero point's rounding, is a step away at most.
    assert (apart <= steps * 1.001).all()
    assert (apart <= steps * 0.501).float().mean() > 0.95
    assert codes.scales.shape == (48, -(-200 // group))


@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_on_the_grid_come_back_exactly_and_zeros_stay_zero(symmetric: bool) -> None:
    grid = Grid(4, 32, symmetric)
    on_grid = round_to_nearest(weights(width=96), grid).wide()
    assert torch.allclose(round_to_nearest(on_grid, grid).wide(), on_grid, atol=1e-6)
    assert (round_to_nearest(torch.zeros(3, 40), grid).wide() == 0).all()
    assert values_per_block(on_grid, 32) <= 16 < values_per_block(weights(), 32)


@pytest.mark.parametrize("symmetric", [True, False])
def test_hqq_never_has_a_larger_heavy_tailed_error_than_rounding_and_often_a_smaller_one(symmetric: bool) -> None:
    weight, grid = weights(), Grid(4, 64, symmetric)

    def norms(codes: BlockCodes) -> torch.Tensor:
        return in_blocks(codes.wide() - weight, 64).abs().pow(0.7).sum(-1)

    fitted, rounded = norms(half_quadratic(weight, grid)), norms(round_to_nearest(weight, grid))
    assert (fitted <= rounded * 1.0001).all()
    assert (fitted < rounded * 0.999).float().mean() > 0.4


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 128), (8, 32)])
@pytest.mark.parametrize("act_order", [True, False])
def test_gptq_keeps_outputs_closer_than_rounding(bits: int, group: int, act_order: bool) -> None:
    x, weight, grid = correlated(200), weights(), Grid(bits, group, False)
    moment = x.t() @ x / len(x)
    made = compensated(weight, moment, grid, act_order=act_order)
    assert made.fallback is None
    assert error(made.codes, weight, moment) < 0.8 * error(round_to_nearest(weight, grid), weight, moment)


def test_gptq_equals_its_definition_on_a_small_matrix() -> None:
    """Column by column with the full inverse Hessian of what is still open, as the paper derives it."""
    x, weight = correlated(8, 100), weights(4, 8)
    grid = Grid(4, 8, False)
    moment = x.t() @ x / len(x)
    hessian = (moment + 0.01 * moment.diagonal().mean() * torch.eye(8)).double()
    first = round_to_nearest(weight, grid)
    scales, zeros = first.scales[:, 0].double(), first.zeros[:, 0].double()
    w, expected = weight.double().clone(), torch.zeros(4, 8, dtype=torch.float64)
    for column in range(8):
        inverse = torch.linalg.inv(hessian[column:, column:])
        expected[:, column] = (torch.clamp(torch.round(w[:, column] / scales) + zeros, 0, 15) - zeros) * scales
        left = (w[:, column] - expected[:, column]) / inverse[0, 0]
        w[:, column:] -= left.unsqueeze(1) * inverse[0]
    made = compensated(weight, moment, grid)
    assert made.fallback is None
    assert torch.allclose(made.codes.wide().double(), expected, atol=1e-5)


def test_degenerate_calibration_is_damped_or_falls_back_and_is_never_nan() -> None:
    """FC-017: one token only, dead channels, none alive, a moment that is not finite."""
    weight, grid = weights(16, 64), Grid(4, 32, False)
    one = correlated(64)[:1]
    one[:, 5] = 0
    cases: dict[str, tuple[Any, int]] = {
        "one token": (one.t() @ one, 1),
        "none alive": (torch.zeros(64, 64), 64),
        "not finite": (torch.full((64, 64), float("nan")), 0),
    }
    for name, (moment, dead) in cases.items():
        made = compensated(weight, moment, grid)
        assert made.codes.wide().isfinite().all(), name
        assert made.dead == dead, name
        assert (made.damping is None) == (name != "one token"), name
        assert (made.codes.wide() - weight).abs().max() < 1
    assert "finite second moment" in str(made.fallback)
    nearest = round_to_nearest(weight, grid)
    dead_column = compensated(weight, cases["one token"][0], grid).codes.wide()[:, 5]
    assert (dead_column - weight[:, 5]).abs().max() < nearest.scales.abs().max()


def test_awq_scales_up_the_channels_that_are_fed_most() -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 128)
    x[:, 7] *= 60
    weight, grid = torch.randn(32, 128) * 0.1, Grid(4, 64, False)
    inputs = inputs_of(x)
    scales = channel_scales([weight], inputs, grid)
    assert scales is not None
    assert int(scales.argmax()) == 7
    scaled = round_to_nearest(weight * scales, grid).wide() / scales
    plain = error(round_to_nearest(weight, grid), weight, inputs.moment)
    assert output_error(scaled - weight, inputs.moment) < 0.5 * plain


def test_awq_leaves_alone_what_scaling_does_not_help() -> None:
    inputs = inputs_of(torch.ones(10, 32))
    on_grid = round_to_nearest(weights(8, 32), Grid(4, 32, False)).wide()
    assert channel_scales([on_grid], inputs, Grid(4, 32, False)) is None
