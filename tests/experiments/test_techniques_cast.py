"""FP16 and BF16 on torch modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.parts.tied_weights import embeddings_tied, tied_names, unique_bytes
from experiments.protocols import Ask, Technique
from experiments.records import ExperimentError, FailureKind, Label
from experiments.runtimes.onnxruntime import OnnxRuntime
from experiments.runtimes.torch_eager import TorchEager
from experiments.techniques.bf16 import Bf16
from experiments.techniques.fp16 import Fp16
from experiments.techniques.int8_dynamic import Int8Dynamic
from tests.experiments.building import bert, context, cosine, inputs_for, llama, outputs_of


@pytest.mark.parametrize(("technique", "least"), [(Fp16(), 0.99999), (Bf16(), 0.999)])
def test_a_cast_halves_every_tensor_and_hardly_moves_the_logits(
    technique: Technique, least: float, tmp_path: Path
) -> None:
    module = llama()
    inputs = inputs_for("text-generation")
    wide, before = outputs_of(module, "text-generation", inputs), unique_bytes(module)
    module, effect = technique.apply_torch(module, context(tmp_path, "text-generation"))
    assert effect.changed == effect.of == 20
    assert effect.summary.startswith("20 of 20 tensors cast to ")
    assert unique_bytes(module) == pytest.approx(before / 2, rel=0.01)  # the unsaved rotary frequencies stay wide
    assert cosine(wide, outputs_of(module, "text-generation", inputs)) > least


def test_a_tie_survives_the_cast_and_is_saved_once(tmp_path: Path) -> None:
    module, _ = Fp16().apply_torch(llama(), context(tmp_path, "text-generation"))
    assert embeddings_tied(module)
    assert tied_names(module) == {"model.embed_tokens.weight": "lm_head.weight"}
    TorchEager().save(module, tmp_path / "saved", context(tmp_path, "text-generation"), ())
    size = (tmp_path / "saved" / "model.safetensors").stat().st_size
    assert size < unique_bytes(module) + 4096
    session = TorchEager().open(tmp_path / "saved", "cpu", 2)
    assert session.weights_bytes() == unique_bytes(module)


def test_rotary_frequencies_keep_their_precision(tmp_path: Path) -> None:
    import torch

    module, _ = Fp16().apply_torch(llama(), context(tmp_path, "text-generation"))
    assert module.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_source_with_non_finite_weights_is_named(value: float, tmp_path: Path) -> None:
    module = llama()
    module.model.layers[1].mlp.down_proj.weight.data[3, 4] = value
    for technique in (Fp16(), Bf16(), Int8Dynamic()):
        with pytest.raises(ExperimentError, match=r"model\.layers\.1\.mlp\.down_proj\.weight \(1 value\)") as caught:
            technique.apply_torch(module, context(tmp_path, "text-generation"))
        assert caught.value.failure.kind is FailureKind.BAD_MODEL
        assert caught.value.failure.detail["tensors"] == {"model.layers.1.mlp.down_proj.weight": 1}


def test_weights_that_overflow_in_fp16_are_a_canary_and_fit_in_bf16(tmp_path: Path) -> None:
    module = bert()
    module.classifier.weight.data[0, :3] = 1e5
    with pytest.raises(ExperimentError, match=r"overflow in float16.*classifier\.weight \(3 values\)") as caught:
        Fp16().apply_torch(module, context(tmp_path, "text-classification"))
    assert caught.value.failure.kind is FailureKind.CANARY
    assert "bf16" in (caught.value.failure.fix or "")
    again = bert()
    again.classifier.weight.data[0, :3] = 1e5
    Bf16().apply_torch(again, context(tmp_path, "text-classification"))


def test_a_second_cast_changes_nothing_and_says_so(tmp_path: Path) -> None:
    module, _ = Bf16().apply_torch(bert(), context(tmp_path, "text-classification"))
    with pytest.raises(ExperimentError, match="changed nothing") as caught:
        Bf16().apply_torch(module, context(tmp_path, "text-classification"))
    assert caught.value.failure.kind is FailureKind.NO_EFFECT


def test_bf16_is_refused_for_onnx_with_what_to_choose() -> None:
    step = Bf16()
    refused = step.refuse(Ask(task="text-classification", device="cpu", runtime=OnnxRuntime(), recipe=(step,)))
    assert refused is not None
    assert "torch-eager" in refused
    assert "int8-dynamic" in refused
    assert step.refuse(Ask(task="text-classification", device="cpu", runtime=TorchEager(), recipe=(step,))) is None


def test_a_recipe_sets_one_number_format() -> None:
    recipe = (Fp16(), Int8Dynamic())
    ask = Ask(task="text-classification", device="cpu", runtime=TorchEager(), recipe=recipe)
    for step in recipe:
        assert "fp16 and int8-dynamic each set the number format" in (step.refuse(ask) or "")


def test_labels_and_textbook_stand_beside_what_is_measured() -> None:
    for technique in (Fp16, Bf16, Int8Dynamic):
        assert technique.label is Label.PACKED
        assert technique.textbook.size
        assert technique.textbook.quality
