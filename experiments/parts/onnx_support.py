"""Which model types can be exported to ONNX, told without importing torch or optimum.

The table is optimum's own (a test compares it with the installed version), without encoder-decoder models, which have
no single graph. A type that is missing can still be run with a torch runtime.
"""

from __future__ import annotations

from experiments.protocols import Task

EXPORTABLE: dict[Task, frozenset[str]] = {
    "text-classification": frozenset(
        "albert bert big_bird bloom camembert convbert data2vec-text deberta deberta-v2 distilbert electra "
        "esm flaubert gpt2 gpt_neo gpt_neox gptj ibert llama megatron-bert mistral mobilebert modernbert "
        "mpnet nystromformer opt phi phi3 qwen2 qwen3 rembert roberta roformer squeezebert xlm xlm-roberta".split()
    ),
    "text-generation": frozenset(
        "arcee bloom codegen cohere falcon gemma gemma2 gemma3_text glm gpt2 gpt_bigcode gpt_neo gpt_neox "
        "gptj granite helium llama mistral mpt nemotron olmo olmo2 opt phi phi3 qwen2 qwen3 smollm3 stablelm".split()
    ),
    "feature-extraction": frozenset(
        "albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra esm "
        "flaubert gpt2 ibert llama megatron-bert mistral mobilebert modernbert mpnet nystromformer opt phi "
        "qwen2 qwen3 rembert roberta roformer squeezebert xlm xlm-roberta".split()
    ),
    "image-classification": frozenset(
        "beit convnext convnextv2 cvt data2vec-vision deit dinov2 efficientnet hiera levit mobilenet_v1 "
        "mobilenet_v2 mobilevit poolformer pvt regnet resnet segformer swin swinv2 vit vit_msn".split()
    ),
}


def not_exportable(task: Task, model_type: str) -> str | None:
    """Why a model of this type can't become one ONNX graph, and what to choose; None if it can."""
    if model_type in EXPORTABLE[task]:
        return None
    return f"models of type '{model_type}' have no ONNX export for {task}; choose runtime torch-eager"
