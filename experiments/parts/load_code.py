"""The Python that opens an artifact where Steelyard is not installed, by the form of its files. Torch-free."""

from __future__ import annotations

from pathlib import PurePosixPath

from experiments.records import Report

#: Task -> the class of transformers that opens a model of it, and what it reads.
_AUTO = {
    "text-classification": ("AutoModelForSequenceClassification", "text"),
    "text-generation": ("AutoModelForCausalLM", "text"),
    "feature-extraction": ("AutoModel", "text"),
    "image-classification": ("AutoModelForImageClassification", "image"),
}


def load_code(report: Report) -> tuple[list[str], tuple[str, ...]]:
    """The lines of code, run in the artifact's folder, and the distributions that they need.

    What they leave behind: ``model`` and ``tokenizer``, or ``session``.
    """
    assert report.artifact is not None, "the caller has looked"
    files = report.artifact.files
    adapters = _adapters(files)
    if adapters:
        return _with_adapters(report, adapters), ("torch", "transformers", "peft")
    if report.artifact.form == "onnx":
        return _onnx(report), ("onnxruntime", "tokenizers", "numpy")
    if "load.py" in files:
        return _packed(report), ("torch", "transformers", "safetensors")
    return _pretrained(report), ("torch", "transformers")


def _adapters(files: dict[str, int]) -> list[str]:
    """Folders of PEFT adapters, by their configurations."""
    return sorted(str(PurePosixPath(name).parent) for name in files if name.endswith("/adapter_config.json"))


def _auto(report: Report) -> tuple[str, str]:
    return _AUTO.get(report.task, ("AutoModel", "text"))


def _inputs(report: Report) -> list[str]:
    """Lines that make ``inputs``: from a text, or an empty image of the right size."""
    if _auto(report)[1] == "image":
        return [
            "# pixel_values: (batch, channels, height, width), prepared as preprocessor_config.json says",
            "config = model.config",
            "shape = (1, config.num_channels, *([config.image_size] * 2))",
            'inputs = {"pixel_values": torch.zeros(shape, dtype=model.dtype)}',
        ]
    return [
        'tokenizer = AutoTokenizer.from_pretrained(".")',
        'inputs = tokenizer("A text to try it with", return_tensors="pt")',
    ]


def _answer(report: Report) -> list[str]:
    output = "last_hidden_state" if _auto(report)[0] == "AutoModel" else "logits"
    return ["with torch.no_grad():", f"    print(model(**inputs).{output})"]


def _imports(report: Report, *models: str) -> list[str]:
    names = [*models, *(["AutoTokenizer"] if _auto(report)[1] == "text" else [])]
    return [f"from transformers import {', '.join(sorted(names))}"] if names else []


def _pretrained(report: Report) -> list[str]:
    name = _auto(report)[0]
    return [
        "import torch",
        *_imports(report, name),
        "",
        f'model = {name}.from_pretrained(".", dtype="auto").eval()',
        *_inputs(report),
        *_answer(report),
    ]


def _packed(report: Report) -> list[str]:
    return [
        "import torch",
        *_imports(report),
        "",
        "from load import load  # load.py beside the weights: the packed layers, in plain torch",
        "",
        "model = load()",
        *_inputs(report),
        *_answer(report),
    ]


def _with_adapters(report: Report, folders: list[str]) -> list[str]:
    name = _auto(report)[0]
    names = [PurePosixPath(folder).name for folder in folders]
    first, *others = zip(folders, names, strict=True)
    lines = [
        "import torch",
        "from peft import PeftModel",
        *_imports(report, name),
        "",
        "# the base model lies here, the adapters below it; with another copy of the base they are all that is needed",
        f'base = {name}.from_pretrained(".", dtype="auto")',
    ]
    if others:
        lines.append(f"model = PeftModel.from_pretrained(base, {first[0]!r}, adapter_name={first[1]!r})")
        lines += [f"model.load_adapter({folder!r}, adapter_name={adapter!r})" for folder, adapter in others]
        lines.append(f"model.set_adapter({first[1]!r})  # the one that answers now")
    else:
        lines.append(f"model = PeftModel.from_pretrained(base, {first[0]!r})")
    return [*lines, "model.eval()", *_inputs(report), *_answer(report)]


def _onnx(report: Report) -> list[str]:
    lines = ["import numpy as np", "import onnxruntime"]
    if _auto(report)[1] == "text":
        lines.append("from tokenizers import Tokenizer")
    lines += [
        "",
        'session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])',
        "wanted = {value.name: value for value in session.get_inputs()}",
        "print({name: (value.type, value.shape) for name, value in wanted.items()})",
    ]
    if _auto(report)[1] == "image":
        return [
            *lines,
            "# pixel_values: (batch, channels, height, width), prepared as preprocessor_config.json says",
            'shape = [1 if isinstance(n, str) else n for n in wanted["pixel_values"].shape]',
            'print(session.run(None, {"pixel_values": np.zeros(shape, np.float32)})[0])',
        ]
    return [
        *lines,
        'encoded = Tokenizer.from_file("tokenizer.json").encode("A text to try it with")',
        "given = {",
        '    "input_ids": np.array([encoded.ids], np.int64),',
        '    "attention_mask": np.ones((1, len(encoded.ids)), np.int64),',
        '    "token_type_ids": np.array([encoded.type_ids], np.int64),',
        '    "position_ids": np.arange(len(encoded.ids), dtype=np.int64)[None],',
        "}",
        "for name, value in wanted.items():  # an empty key-value cache, where the graph has one",
        '    if name.startswith("past_key_values"):',
        "        batch, heads, _, width = value.shape",
        '        dtype = np.float16 if "float16" in value.type else np.float32',
        "        given[name] = np.zeros((1, heads, 0, width), dtype)",
        "print(session.run(None, {name: given[name] for name in wanted})[0])",
    ]
