"""ONNX Runtime's transformer fusions, made ahead in the file: several nodes of an attention block become one.

The library knows a few model families; which of its patterns a graph really has is only known by trying, so what was
fused is counted and told.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from experiments.protocols import BuildContext
from experiments.records import ExperimentError, FailureKind

#: The operator set of what the fusions make.
_DOMAIN = "com.microsoft"
#: Models whose norm has no node in ONNX: a file with ONNX Runtime's own one would break the standard's rules.
_RMS = frozenset("gemma gemma2 llama mistral phi3 qwen2 qwen3".split())
#: Hugging Face model type -> the family whose patterns ONNX Runtime's optimizer looks for.
FAMILIES = {
    **dict.fromkeys(
        "albert bert camembert deberta distilbert electra megatron-bert mobilebert mpnet rembert roberta "
        "squeezebert xlm-roberta".split(),
        "bert",
    ),
    **dict.fromkeys("gpt2 gpt_neo".split(), "gpt2"),
    "gpt_neox": "gpt_neox",
    **dict.fromkeys("deit dinov2 vit".split(), "vit"),
    "swin": "swin",
}


def no_fusions(model_type: str) -> str | None:
    """Why there are no fusions for models of this type, or None; torch-free."""
    if model_type in FAMILIES:
        return None
    if model_type in _RMS:
        return (
            f"ONNX Runtime fuses graphs of '{model_type}' while it loads them; a file can't hold its norm's node; set "
            "the runtime's fusions to false and keep its optimization at all"
        )
    return (
        f"ONNX Runtime has no transformer fusions for models of type '{model_type}'; set the runtime's fusions to false"
    )


def fuse(folder: Path, context: BuildContext) -> str:
    """Rewrite ``folder/model.onnx`` with fused nodes; says which, e.g. '13 LayerNormalization, 6 Attention'.

    Raises:
        ExperimentError: ``no_effect`` if no pattern was found in this graph.
    """
    import onnx
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    from experiments.parts.onnx_graph import DATA, MODEL, load_graph, save_graph

    logging.getLogger("onnxruntime.transformers").setLevel(logging.ERROR)
    family = FAMILIES[context.facts.model_type]
    options = FusionOptions(family)
    # The embedding's lookup stays a node of its own: its inputs keep their types, and its table is counted apart.
    options.enable_embed_layer_norm = False
    source = load_graph(folder / MODEL)
    before = _kinds(source)
    fused = optimizer.optimize_model(
        source,
        family,
        num_heads=context.facts.heads or 0,
        hidden_size=context.facts.hidden_size or 0,
        optimization_options=options,
        opt_level=0,
        use_gpu=context.device == "cuda",
    )
    model: onnx.ModelProto = fused.model
    if not any(opset.domain == _DOMAIN for opset in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    new = {
        kind: count - before[kind] for kind, count in _kinds(model).items() if kind in _FUSED and count > before[kind]
    }
    if not new:
        raise ExperimentError(
            FailureKind.NO_EFFECT,
            f"none of ONNX Runtime's {family} patterns is in this graph of {sum(before.values())} nodes",
            fix="Set the runtime's fusions to false; ONNX Runtime still fuses what it finds while it loads the graph.",
            field="runtime.fusions",
        )
    # Files of a build may be linked with the cache's: new ones take their place.
    scratch = context.work / "fused"
    scratch.mkdir(parents=True)
    save_graph(model, scratch / MODEL)
    (folder / DATA).unlink(missing_ok=True)
    for path in scratch.iterdir():
        path.replace(folder / path.name)
    parts = ", ".join(f"{count} {kind}" for kind, count in sorted(new.items(), key=lambda item: -item[1]))
    return f"{parts}; {sum(before.values())} nodes became {sum(_kinds(model).values())}"


#: What the fusions make.
_FUSED = frozenset(
    "Attention MultiHeadAttention GroupQueryAttention LayerNormalization SkipLayerNormalization "
    "RotaryEmbedding Gelu FastGelu BiasGelu QuickGelu "
    "EmbedLayerNormalization BiasSplitGelu QAttention".split()
)


def _kinds(model: object) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)  # type: ignore[attr-defined]
