"""Dynamic INT8 on torch modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.parts import int8_range
from experiments.parts.tied_weights import unique_bytes
from experiments.protocols import Ask, Task
from experiments.records import ExperimentError, FailureKind
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments.building import (
    bert,
    context,
    cosine,
    gpt2,
    in_fresh_process,
    inputs_for,
    llama,
    outputs_of,
    vit,
)


@pytest.mark.parametrize(
    ("make", "task", "changed", "of"),
    [
        (llama, "text-generation", 14, 15),
        (gpt2, "text-generation", 8, 9),
        (bert, "text-classification", 14, 14),
        (vit, "image-classification", 13, 13),
    ],
)
def test_linear_layers_are_swapped_and_counted(make: Any, task: Task, changed: int, of: int, tmp_path: Path) -> None:
    module = make()
    inputs = inputs_for(task)
    wide, before = outputs_of(module, task, inputs), unique_bytes(module)
    module, effect = Int8Dynamic().apply_torch(module, context(tmp_path, task))
    assert (effect.changed, effect.of) == (changed, of)
    assert effect.summary.startswith(f"{changed} of {of} linear layers quantized")
    assert cosine(wide, outputs_of(module, task, inputs)) > 0.999
    assert unique_bytes(module) < before


def test_gpt2s_conv1d_projections_are_quantized_transposed(tmp_path: Path) -> None:
    import torch

    source = gpt2()
    module, effect = Int8Dynamic().apply_torch(gpt2(), context(tmp_path, "text-generation"))
    wide, layer = source.transformer.h[0].mlp.c_fc, module.transformer.h[0].mlp.c_fc
    assert type(wide).__name__ == "Conv1D"
    assert (layer.out_features, layer.in_features) == (128, 32)
    x = torch.randn(3, 5, 32)
    assert torch.allclose(layer(x), wide(x), atol=0.02)
    assert list(effect.kept) == ["lm_head"]


def test_a_tied_head_stays_float_keeps_its_tie_and_is_counted_once(tmp_path: Path) -> None:
    module, effect = Int8Dynamic().apply_torch(llama(), context(tmp_path, "text-generation"))
    assert "shares its tensor with model.embed_tokens.weight" in effect.kept["lm_head"]
    assert module.lm_head.weight.data_ptr() == module.model.embed_tokens.weight.data_ptr()
    untied, effect = Int8Dynamic().apply_torch(llama(tie_word_embeddings=False), context(tmp_path, "text-generation"))
    assert (effect.changed, effect.kept) == (15, {})
    assert type(untied.lm_head).__name__ == "DynamicInt8Linear"


def test_integer_weights_are_saved_without_pickle_and_reload_equal_in_a_fresh_process(tmp_path: Path) -> None:
    inputs = inputs_for("text-generation")
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, **inputs)
    before, sizes = {}, {}
    for name, make in (("llama", llama), ("gpt2", gpt2)):
        module, _ = Int8Dynamic().apply_torch(make(), context(tmp_path, "text-generation"))
        before[name], sizes[name] = outputs_of(module, "text-generation", inputs), unique_bytes(module)
        (tmp_path / name).mkdir()
        TorchEager().save(module, tmp_path / name, context(tmp_path, "text-generation"), ())
        assert {p.suffix for p in (tmp_path / name).iterdir()} == {".json", ".safetensors", ".py"}
    answer = in_fresh_process(
        """
        from pathlib import Path
        import numpy as np
        from experiments.runtimes.torch_eager import TorchEager
        answer = {}
        for name in ("llama", "gpt2"):
            folder = Path(values["folder"])
            session = TorchEager().open(folder / name, "cpu", 2)
            np.save(folder / f"{name}.npy", session.forward(dict(np.load(folder / "inputs.npz"))))
            answer[name] = [session.proof()["packed_layers"], session.weights_bytes()]
        """,
        folder=str(tmp_path),
    )
    assert answer == {"llama": [14, sizes["llama"]], "gpt2": [8, sizes["gpt2"]]}
    for name, expected in before.items():
        assert np.abs(np.load(tmp_path / f"{name}.npy") - expected).max() <= 1e-6


def test_a_layer_lost_from_the_file_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    module, _ = Int8Dynamic().apply_torch(bert(), context(tmp_path, "text-classification"))
    TorchEager().save(module, tmp_path / "a", context(tmp_path, "text-classification"), ())
    path = tmp_path / "a" / "model.safetensors"
    tensors = load_file(path)
    del tensors["classifier.weight_int8"]
    save_file(tensors, path)
    with pytest.raises(ExperimentError, match=r"classifier\.weight_int8") as caught:
        TorchEager().open(tmp_path / "a", "cpu", 2)
    assert caught.value.failure.kind is FailureKind.BAD_MODEL


def test_layers_are_kept_by_name_and_a_typo_is_an_error(tmp_path: Path) -> None:
    _, effect = Int8Dynamic(keep=("classifier", "output.dense")).apply_torch(
        bert(), context(tmp_path, "text-classification")
    )
    assert effect.changed == 9
    assert effect.kept["classifier"] == "asked for by keep: 'classifier'"
    with pytest.raises(ExperimentError, match="'clasifier' in keep matches none of the 14 linear layers"):
        Int8Dynamic(keep=("clasifier",)).apply_torch(bert(), context(tmp_path, "text-classification"))


def test_nothing_to_quantize_is_no_effect(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="0 of 14 linear layers quantized") as caught:
        Int8Dynamic(keep=("*",)).apply_torch(bert(), context(tmp_path, "text-classification"))
    assert caught.value.failure.kind is FailureKind.NO_EFFECT


def test_a_row_of_zeros_and_one_scale_per_tensor_stay_exact(tmp_path: Path) -> None:
    import torch

    from experiments.parts.quantized_linear import DynamicInt8Linear, quantize_weight

    weight = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, -127.0, 64.0, 3.0]])
    for per_channel, scales in ((True, [1.0, 1.0]), (False, [1.0])):
        codes, found = quantize_weight(weight, per_channel)
        assert found.tolist() == scales
        assert torch.equal(codes.float(), weight)
        layer = DynamicInt8Linear(codes, found, None, reduce_range=False)
        assert [t.tolist() for t in layer.saved().values()] == [codes.tolist(), scales]
        assert layer.packed_bytes() == 8 + 4 * len(scales)


def test_cuda_is_refused_with_what_to_choose() -> None:
    refused = Int8Dynamic().refuse(Ask(task="text-generation", device="cuda", runtime=TorchEager()))
    assert refused is not None
    assert "fp16 or bf16" in refused


@pytest.mark.parametrize(
    ("isa", "setting", "expected"),
    [
        (("avx2",), "auto", True),
        (("avx2", "avx_vnni"), "auto", False),
        ((), "auto", True),
        (("avx2",), False, False),
        (("avx512_vnni",), True, True),
    ],
)
def test_seven_bits_are_used_where_the_cpu_would_saturate(isa: tuple[str, ...], setting: Any, expected: bool) -> None:
    reduce, why = int8_range.reduce_range(setting, isa)
    assert reduce is expected
    assert f"reduce_range={'on' if expected else 'off'}" in why
    assert ("may saturate" in why) == (not expected and "avx2" in isa and len(isa) == 1)


def test_why_seven_bits_pairs_of_full_products_leave_int16() -> None:
    def kernel(weights: int, activations: int) -> int:
        """``vpmaddubsw``: two u8 x s8 products into a saturating int16, then summed (K = 64)."""
        pair = np.clip(2 * activations * weights, -32768, 32767)
        return int(pair) * 32

    assert kernel(127, 255) != 64 * 127 * 255  # saturated: error 49 %
    assert kernel(64, 255) == 64 * 64 * 255  # weights of 7 bits (ONNX Runtime)
    assert kernel(127, 127) == 64 * 127 * 127  # activations of 7 bits (FBGEMM)


def test_this_cpus_kernel_is_exact_at_the_extremes() -> None:
    """FC-019 on the worker itself: all weights 127, all activations at the top of their range."""
    import torch

    from experiments.hardware.cpu import isa
    from experiments.parts.quantized_linear import DynamicInt8Linear

    reduce, _ = int8_range.reduce_range("auto", isa())
    layer = DynamicInt8Linear(torch.full((8, 64), 127, dtype=torch.int8), torch.ones(8), None, reduce)
    y = layer(torch.ones(4, 64))
    assert torch.allclose(y, torch.full((4, 8), 64.0 * 127.0), rtol=0.01)


def test_the_choice_is_recorded_in_the_effect(tmp_path: Path) -> None:
    _, effect = Int8Dynamic().apply_torch(bert(), context(tmp_path, "text-classification", isa=("avx2",)))
    assert "reduce_range=on: this CPU has no exact 8-bit dot product" in effect.summary


def test_embeddings_are_stored_as_int8_where_asked_and_reload_equal(tmp_path: Path) -> None:
    module = bert()
    inputs = inputs_for("text-classification")
    wide, before = outputs_of(module, "text-classification", inputs), unique_bytes(module)
    plain, _ = Int8Dynamic().apply_torch(bert(), context(tmp_path, "text-classification"))
    module, effect = Int8Dynamic(embeddings=True).apply_torch(module, context(tmp_path, "text-classification"))
    assert "3 of 3 embedding tables stored as int8" in effect.summary
    assert cosine(wide, outputs_of(module, "text-classification", inputs)) > 0.999
    rows, width = 200 + 64 + 2, 32
    assert unique_bytes(plain) - unique_bytes(module) == rows * (4 * width - width - 4)
    assert unique_bytes(module) < before / 3
    TorchEager().save(module, tmp_path / "a", context(tmp_path, "text-classification"), ())
    session = TorchEager().open(tmp_path / "a", "cpu", 2)
    expected = outputs_of(module, "text-classification", inputs)
    assert np.abs(session.forward(inputs) - expected).max() <= 1e-6
    assert session.weights_bytes() == unique_bytes(module)


def test_a_tied_pair_stays_float_although_embeddings_were_asked_for(tmp_path: Path) -> None:
    """FC-015: the rule is told, and what is reloaded answers as before."""
    sizes = {}
    for tied in (True, False):
        module = llama(tie_word_embeddings=tied, vocab_size=1000)
        module, effect = Int8Dynamic(embeddings=True).apply_torch(module, context(tmp_path, "text-generation"))
        sizes[tied] = unique_bytes(module)
        if tied:
            assert "lm_head.weight; kept float, tie intact, counted once" in effect.kept["model.embed_tokens"]
            assert module.lm_head.weight.data_ptr() == module.model.embed_tokens.weight.data_ptr()
        else:
            assert not effect.kept
        inputs = inputs_for("text-generation")
        expected = outputs_of(module, "text-generation", inputs)
        TorchEager().save(module, tmp_path / str(tied), context(tmp_path, "text-generation"), ())
        session = TorchEager().open(tmp_path / str(tied), "cpu", 2)
        assert np.abs(session.forward(inputs) - expected).max() <= 1e-6
        assert session.weights_bytes() == sizes[tied]
    assert sizes[True] - sizes[False] == 1000 * 32 * 4 - 2 * 1000 * (32 + 4)


def test_saturation_is_asked_of_the_kernels_of_this_cpu() -> None:
    """FC-019: with 'auto' the largest products are exact here, whatever the CPU has."""
    from experiments.hardware.cpu import isa
    from experiments.parts.int8_saturation import TOLERANCE, onnx_saturation, saturation_warning, torch_saturation

    reduce, _ = int8_range.reduce_range("auto", isa())
    assert torch_saturation(reduce) <= TOLERANCE
    assert onnx_saturation(reduce) <= TOLERANCE
    assert saturation_warning("onnx", reduce) is None
