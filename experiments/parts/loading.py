"""A model folder to a ``torch.nn.Module`` whose every weight is proven to be the file's.

Importing this file imports no torch. Tokenizers and pixels need none at all and are offered here too.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.parts.architectures import tasks_of
from experiments.parts.images import image_pixels
from experiments.parts.model_facts import WRAPPERS, facts_of_folder, wrapper_prefix
from experiments.parts.padding import padding_of
from experiments.parts.quiet import quiet_transformers
from experiments.parts.tokenizer import load_tokenizer
from experiments.parts.weights import Stored, nonfinite_tensors, stored_tensors
from experiments.protocols import Task
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import torch

__all__ = ["image_pixels", "load_module", "load_tokenizer", "verify_loaded"]

_CLASSES: dict[Task, str] = {
    "text-classification": "AutoModelForSequenceClassification",
    "text-generation": "AutoModelForCausalLM",
    "feature-extraction": "AutoModel",
    "image-classification": "AutoModelForImageClassification",
}
#: Heads that a base model for features leaves in the file.
_HEAD_WORDS = ("classifier", "score", "lm_head", "cls", "qa_outputs", "pre_classifier", "vocab_", "pooler", "decoder")
_SPOT_CHECKS, _SPOT_VALUES = 24, 65_536


def load_module(folder: Path, task: Task) -> torch.nn.Module:
    """The model of ``folder`` for ``task`` on the CPU, in evaluation mode and in the type it is stored in.

    Attention is PyTorch's own (``sdpa``) where the type has it: what a user would run, and within float rounding of
    what an ONNX export computes. Every tensor of the model must come from the file; some are compared bit for bit.

    Raises:
        ExperimentError: ``bad_model`` if weights are missing, left over, of other shapes, not finite or not those of
            the file, or if the architecture has no head for the task.
    """
    import torch
    import transformers

    facts = facts_of_folder(folder)
    possible = tasks_of(facts.model_type, facts.architectures)
    if task not in possible:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"{facts.architectures[0] if facts.architectures else facts.model_type} has no weights for {task}",
            fix=f"Choose one of: {', '.join(possible)}." if possible else "Choose another model.",
            field="task",
        )
    if broken := nonfinite_tensors(folder):
        name, count = next(iter(broken.items()))
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"the weights are not finite: {name} has {count:,} NaN or infinite values"
            + (f", and {len(broken) - 1} more tensors have some" if len(broken) > 1 else ""),
            fix="Use a checkpoint from before the values overflowed.",
            field="model",
            tensors=dict(list(broken.items())[:100]),
        )
    tensors = stored_tensors(folder)
    prefix = wrapper_prefix(tensors)
    auto = getattr(transformers, _CLASSES[task])
    try:
        with quiet_transformers(), _unwrapped(folder, prefix) as plain:
            module, seen = auto.from_pretrained(
                plain,
                dtype=getattr(torch, facts.dtype),
                trust_remote_code=False,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"transformers can't load {folder.name}: {str(error).splitlines()[0][:300] if str(error) else error!r}",
            fix="Check that config.json belongs to these weights.",
            field="model",
        ) from error
    _check_keys(seen, tensors, task, module)
    if task == "feature-extraction" and any("pooler" in name for name in seen["missing_keys"]):
        module.pooler = None  # it would be random, and the features that are measured don't pass through it
    verify_loaded(module, tensors)
    if getattr(module.config, "pad_token_id", None) is None and (folder / "tokenizer.json").is_file():
        vocabulary = load_tokenizer(folder).get_vocab(with_added_tokens=True)
        module.config.pad_token_id = padding_of(folder, vocabulary).id
    loaded: torch.nn.Module = module.eval()
    return loaded


def verify_loaded(module: torch.nn.Module, tensors: dict[str, Stored]) -> int:
    """Compare some loaded tensors with the file's values; returns how many were compared.

    Up to 24 tensors, spread over the file, by their first 65,536 values each.

    Raises:
        ExperimentError: ``bad_model`` if one differs or none can be found by its name.
    """
    import torch

    state = module.state_dict()
    named = [(name, own) for name in tensors if (own := _own_name(name, state, module)) is not None]
    step = max(1, len(named) // _SPOT_CHECKS)
    compared = 0
    for name, own in named[::step]:
        stored, held = tensors[name], state[own]
        if tuple(held.shape) != stored.shape or held.device.type == "meta":
            continue
        expected = _first_values(stored).to(held.dtype)
        if not torch.equal(held.reshape(-1)[: len(expected)].cpu(), expected):
            raise ExperimentError(
                FailureKind.BAD_MODEL,
                f"after loading, {own} does not hold the file's values: the model would run with other weights",
                fix="The model's class changes its weights on loading (for example by initialising them again).",
                field="model",
            )
        compared += 1
    if not compared:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"0 of {len(tensors)} weights matched the model's own names",
            fix="Check that config.json belongs to these weights.",
            field="model",
        )
    return compared


@contextmanager
def _unwrapped(folder: Path, prefix: str | None) -> Iterator[Path]:
    """``folder``, or for the time of the block a copy of it whose weights are named without ``prefix``."""
    if prefix is None:
        yield folder
        return
    from safetensors.torch import load_file, save_file

    state: dict[str, torch.Tensor] = {}
    for file in sorted({stored.file for stored in stored_tensors(folder).values()}):
        state.update({name.removeprefix(prefix): value for name, value in load_file(file).items()})
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("config.json", "generation_config.json"):
            if (folder / name).is_file():
                shutil.copy(folder / name, scratch)
        save_file(state, Path(scratch) / "model.safetensors", metadata={"format": "pt"})
        yield Path(scratch)


def _check_keys(seen: dict[str, Any], tensors: dict[str, Stored], task: Task, module: Any) -> None:
    """Nothing may be missing or of another shape; only a head that features don't need may be left over."""
    stored = len(tensors)
    missing, unexpected = sorted(seen["missing_keys"]), sorted(seen["unexpected_keys"])
    mismatched = seen["mismatched_keys"]
    if mismatched:
        name = sorted(mismatched)[0]
        in_file = next(iter([list(t.shape) for key, t in tensors.items() if key.endswith(name)]), "?")
        in_model = list(module.state_dict()[name].shape)
        raise _bad_keys(
            f"{len(mismatched)} of {stored} weights have another shape than config.json says, first {name}: "
            f"{in_file} in the file, {in_model} in the model"
        )
    if task == "feature-extraction":
        # A pooler is not part of the features that are measured (the last hidden states).
        missing = [name for name in missing if "pooler" not in name]
        unexpected = [name for name in unexpected if not any(word in name for word in _HEAD_WORDS)]
    ignored = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or []
    unexpected = [name for name in unexpected if name not in ignored]
    total = len(module.state_dict())
    if missing:
        raise _bad_keys(
            f"{max(0, total - len(missing))} of {total} weights matched; {len(missing)} are not in the file and would "
            f"be random, first {_some(missing)}"
        )
    if unexpected:
        raise _bad_keys(
            f"{stored - len(unexpected)} of {stored} weights matched; {len(unexpected)} in the file fit nowhere, "
            f"first {_some(unexpected)}"
        )


def _bad_keys(message: str) -> ExperimentError:
    return ExperimentError(
        FailureKind.BAD_MODEL,
        message,
        fix="Check that config.json (architectures, sizes) belongs to these weights and that the task fits them.",
        field="model",
    )


def _some(names: Iterable[str]) -> str:
    first = list(names)[:3]
    return ", ".join(first)


def _own_name(name: str, state: dict[str, Any], module: torch.nn.Module) -> str | None:
    """The name in the module's state of a tensor in the file: wrappers, base prefixes and old norm names aside."""
    for prefix in WRAPPERS:
        name = name.removeprefix(prefix)
    base = f"{getattr(module, 'base_model_prefix', '')}."
    modern = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    for candidate in (name, modern):
        for own in (candidate, base + candidate, candidate.removeprefix(base)):
            if own in state:
                return own
    return None


def _first_values(stored: Stored) -> torch.Tensor:
    """Up to 65,536 leading values of a stored tensor, in its own type."""
    import torch

    from experiments.parts.weights import DTYPES

    bits = stored.bits()[:_SPOT_VALUES]
    raw = torch.frombuffer(bytearray(bits.tobytes()), dtype=torch.uint8) if len(bits) else torch.empty(0)
    return raw.view(getattr(torch, DTYPES[stored.dtype][2]))
