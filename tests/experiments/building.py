"""Small random models in memory and what a builder hands to techniques and runtimes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.protocols import BuildContext, ModelFacts, Task

VNNI = ("avx2", "avx512_vnni")
REPOSITORY = Path(__file__).parents[2]


def llama(**changes: Any) -> Any:
    """Two layers, width 32, grouped-query attention, tied head unless told otherwise: 15 linear layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {"tie_word_embeddings": True, "vocab_size": 200, "num_key_value_heads": 2, **changes}
    return _seeded(
        lambda: LlamaForCausalLM(
            LlamaConfig(
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
                **settings,
            )
        )
    )


def gpt2() -> Any:
    """Two layers, width 32: 8 block projections that are Conv1D, and a tied head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return _seeded(lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=200, n_positions=64)))


def bert(**changes: Any) -> Any:
    """A classifier of two layers and width 32: 14 linear layers."""
    from transformers import BertConfig, BertForSequenceClassification

    return _seeded(
        lambda: BertForSequenceClassification(
            BertConfig(
                vocab_size=200,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=64,
                **changes,
            )
        )
    )


def vit() -> Any:
    """An image classifier of two layers and width 32 over 8x8 grey images: 13 linear layers."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
    )
    return _seeded(lambda: ViTForImageClassification(config))


def context(work: Path, task: Task, **changes: Any) -> BuildContext:
    """What the builder would hand over, on a CPU with VNNI unless told otherwise."""
    for name in ("source", "work"):
        (work / name).mkdir(exist_ok=True, parents=True)
    settings: dict[str, Any] = {
        "task": task,
        "device": "cpu",
        "facts": ModelFacts("tiny", "tiny", (), task, 0, "float32", 0),
        "source": work / "source",
        "work": work / "work",
        "seed": 0,
        "threads": 2,
        "sequence_length": 16,
        "isa": VNNI,
        "log": lambda line: None,
    }
    return BuildContext(**{**settings, **changes})


def inputs_for(task: Task) -> dict[str, npt.NDArray[Any]]:
    """Two seeded examples."""
    rng = np.random.default_rng(1)
    if task == "image-classification":
        return {"pixel_values": rng.standard_normal((2, 1, 8, 8)).astype(np.float32)}
    return {"input_ids": rng.integers(0, 200, (2, 12)), "attention_mask": np.ones((2, 12), np.int64)}


def outputs_of(module: Any, task: Task, inputs: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """What the module in memory answers."""
    from experiments.parts.torch_session import TorchSession

    return TorchSession(module.eval(), task, "cpu", 0).forward(inputs)


def cosine(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Cosine of all values of ``a`` and ``b``."""
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def in_fresh_process(program: str, **values: Any) -> Any:
    """Run ``program`` (it reads ``values``, and puts JSON data into ``answer``) in a new interpreter."""
    head = "import json, sys\nvalues = json.loads(sys.argv[1])\n"
    tail = "\nprint('\\n' + json.dumps(answer))\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(program) + tail, json.dumps(values)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def _seeded(make: Callable[[], Any]) -> Any:
    import torch

    torch.manual_seed(0)
    return make().eval()
