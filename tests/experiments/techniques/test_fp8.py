"""FP8: refused where there are no float8 units; its arithmetic is that of e4m3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.protocols import Ask, ModelFacts
from experiments.records import DeviceFacts, ExperimentError
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.fp8 import Fp8
from tests.experiments.building import bert, context, gpt2, llama

FACTS = ModelFacts("smol", "llama", (), "text-generation", 1, "float32", 4)


def test_a_cpu_is_refused_with_the_reason_and_what_to_choose() -> None:
    refused = Fp8().refuse(Ask("text-generation", "cpu", TorchEager(), (Fp8(),), FACTS))
    assert refused is not None
    assert "compute capability 8.9" in refused
    assert "choose int8-dynamic or int8-weight-only" in refused


@pytest.mark.parametrize(("capability", "fine"), [((8, 6), False), ((8, 9), True), ((9, 0), True), (None, True)])
def test_a_gpu_needs_float8_units(capability: tuple[int, int] | None, fine: bool) -> None:
    device = DeviceFacts(name="cuda:0", kind="cuda", model="a GPU", compute_capability=capability)
    refused = Fp8().refuse(Ask("text-generation", "cuda", TorchEager(), (Fp8(),), FACTS, (device,)))
    assert (refused is None) is fine
    assert fine or "a GPU has 8.6; choose fp16 or bf16" in str(refused)


def test_layers_are_swapped_counted_and_a_tied_head_stays_wide(tmp_path: Path) -> None:
    _, effect = Fp8().apply_torch(llama(), context(tmp_path, "text-generation"))
    assert (effect.changed, effect.of) == (14, 15)
    assert "tie intact" in effect.kept["lm_head"]
    _, effect = Fp8().apply_torch(gpt2(), context(tmp_path, "text-generation"))
    assert (effect.changed, effect.of) == (8, 9)
    _, effect = Fp8().apply_torch(bert(), context(tmp_path, "text-classification"))
    assert effect.kept == {"classifier": "its shape of 2 x 32 is no multiple of 16, which the kernel needs"}
    with pytest.raises(ExperimentError, match="0 of 15 linear layers"):
        Fp8(keep=("*",)).apply_torch(llama(), context(tmp_path, "text-generation"))


def test_codes_are_the_nearest_e4m3_values_of_scaled_rows() -> None:
    from experiments.parts.fp8_linear import Fp8Linear, narrowed

    weight = torch.tensor([[448.0, 1.0, -17.0, 0.0] * 4, [0.0] * 16])
    codes, scales = narrowed(weight)
    assert scales.flatten().tolist() == [1.0, 1.0]
    assert codes.float()[0, :4].tolist() == [448.0, 1.0, -16.0, 0.0]  # 17 lies between 16 and 18: ties to even
    layer = Fp8Linear(codes, scales, None)
    assert layer.packed_bytes() == 32 + 8
    assert layer.parameter_count() == 32


def test_what_a_float8_layer_computes_is_simulated_with_gradients(tmp_path: Path) -> None:
    from experiments.parts.linear_layers import linear_layers

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 32))
    simulated = Fp8().simulated(linear_layers(module)[0][0], context(tmp_path, "feature-extraction"))
    x = torch.randn(8, 64)
    y = simulated(x)
    error = float((y - module(x)).norm() / module(x).norm())
    assert 1e-4 < error < 0.06
    y.sum().backward()
    assert module[0].weight.grad is not None
    assert np.isfinite(module[0].weight.grad.numpy()).all()


@pytest.mark.gpu
def test_float8_units_compute_what_is_simulated(tmp_path: Path) -> None:
    from experiments.parts.linear_layers import linear_layers

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 32)).cuda()
    x = torch.randn(8, 64, device="cuda")
    expected = Fp8().simulated(linear_layers(module)[0][0], context(tmp_path, "feature-extraction"))(x)
    narrow, _ = Fp8().apply_torch(module, context(tmp_path, "feature-extraction"))
    assert torch.allclose(narrow(x), expected, rtol=0.02, atol=0.02)
