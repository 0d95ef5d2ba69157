"""Trains LoRA adapters with PEFT, one after the other on one base, and merges or keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from experiments.parts.adapter_mix import combine
from experiments.parts.adapters import hold
from experiments.parts.attention_layers import targets
from experiments.parts.encoded_rows import encode_rows
from experiments.parts.learning import course, labelled, learn, task_loss, training_form
from experiments.parts.linear_layers import LinearLayer, linear_layers
from experiments.parts.tied_weights import parameter_count
from experiments.parts.training import thinned
from experiments.records import ExperimentError, FailureKind, StepEffect

if TYPE_CHECKING:
    from experiments.parts.encoded_rows import EncodedRows
    from experiments.protocols import BuildContext
    from experiments.techniques.lora import Lora


def adapted(module: Any, step: Lora, context: BuildContext) -> tuple[Any, StepEffect]:
    """``module`` with trained adapters, merged or apart, and what was trained.

    Raises:
        ExperimentError: see ``Lora.apply_torch``.
    """
    from peft import PeftModel

    if context.masked and step.merge:
        raise ExperimentError(
            FailureKind.UNSUPPORTED,
            "merging would fill the zeros of the pruned weights",
            fix="Put lora before the pruning, choose finetune, or set merge to false.",
            field="recipe.merge",
        )
    chosen = targets(module, step.targets)
    _check_rank(chosen, step.rank)
    of, parameters = len(linear_layers(module)[0]), parameter_count(module)
    rows = labelled(encode_rows(context.rows("train"), context, length=step.max_length), step.technique)
    shares, shared_out = _shares(rows, step)
    names = [f"adapter-{index + 1}" for index in range(step.adapters)] if step.adapters > 1 else ["default"]
    config = _config(step, chosen, context)
    every: list[list[float]] = []
    with training_form(module, context) as warnings:
        model: Any = None
        for index, (name, share) in enumerate(zip(names, shares, strict=True)):
            torch.manual_seed(context.seed + index)
            if model is None:
                # Not get_peft_model, which would write the folder that the model came from into the adapter's config.
                model = PeftModel(module, config, adapter_name=name, autocast_adapter_dtype=False)
            else:
                model.add_adapter(name, config)
            model.to(context.device)
            model.set_adapter(name)
            losses = learn(module, share, step, context, task_loss(context.task), part=index, parts=step.adapters)
            every.append(losses)
            _check_learnt(module, name, step)
        trained = sum(p.numel() for n, p in module.named_parameters() if f".{names[0]}." in n)
        if step.merge:
            merged_name = names[0]
            if step.adapters > 1:
                merged_name = "mean"
                combine(model, dict.fromkeys(names, 1 / step.adapters), merged_name)
            module = model.merge_and_unload(safe_merge=True, adapter_names=[merged_name])
            module.__dict__.pop("peft_config", None)  # a plain model again, which a later step may adapt
        else:
            model.set_adapter(names[0])
            module = hold(model)
    where = ", ".join(dict.fromkeys(layer.name.rpartition(".")[2] for layer in chosen))
    said = [
        f"rank {step.rank} beside {len(chosen)} of {of} linear layers ({where}): {trained:,} values trained, "
        f"{trained / parameters:.2%} of the model's",
        course(every[0], step, shares[0]),
    ]
    if step.adapters > 1:
        said.append(f"{step.adapters} adapters, {shared_out}")
        if not step.merge:
            warnings = (
                *warnings,
                f"latency and quality are those of {names[0]}, which is active; see the adapters' own numbers",
            )
    if step.merge:
        said.append("their mean merged" if step.adapters > 1 else "merged")
    else:
        said.append(f"kept beside the base model {context.facts.name}")
    effect = StepEffect(
        technique=step.technique,
        summary="; ".join(said),
        changed=len(chosen),
        of=of,
        warnings=warnings,
        losses=thinned(every[0]),
    )
    return module, effect


def _config(step: Lora, chosen: list[LinearLayer], context: BuildContext) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=step.rank,
        lora_alpha=step.alpha,
        lora_dropout=step.dropout,
        use_rslora=step.use_rslora,
        target_modules=[layer.name for layer in chosen],
        # Conv1D stores its weight (in, out).
        fan_in_fan_out=any(type(layer.module).__name__ == "Conv1D" for layer in chosen),
        base_model_name_or_path=context.facts.name,
    )


def _check_rank(chosen: list[LinearLayer], rank: int) -> None:
    for layer in chosen:
        out, into = layer.weight.shape
        if rank > min(out, into):
            raise ExperimentError(
                FailureKind.UNSUPPORTED,
                f"rank {rank:,} is above the size of {layer.name} ({out:,} x {into:,})",
                fix=f"Choose a rank of at most {min(min(chosen_layer.weight.shape) for chosen_layer in chosen):,}.",
                field="recipe.rank",
            )


def _shares(rows: EncodedRows, step: Lora) -> tuple[list[EncodedRows], str]:
    """The rows of each adapter: every n-th one, or all of them where a share would be less than one batch."""
    count = step.adapters
    if count == 1 or len(rows) // count < step.batch_size:
        return [rows] * count, "each on all rows with its own seed"
    shares = [rows.only(range(index, len(rows), count)) for index in range(count)]
    return shares, f"each on its own {len(shares[-1]):,} rows"


def _check_learnt(module: Any, name: str, step: Lora) -> None:
    """B starts at zero: an adapter whose B still is has learnt nothing."""
    if not any(bool((p != 0).any()) for n, p in module.named_parameters() if f".lora_B.{name}." in n):
        raise ExperimentError(
            FailureKind.NO_EFFECT,
            f"lora learnt nothing in {step.steps:,} steps",
            fix="Use a larger learning_rate or more steps.",
        )
