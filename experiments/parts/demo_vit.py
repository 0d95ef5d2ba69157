"""digits-vit: a small vision transformer trained on scikit-learn's digits, made once in under a minute."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.parts import digits
from experiments.parts.images import image_pixels
from experiments.parts.training import Plan, train
from experiments.protocols import Examples, Host
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

BATCH = 64
PLAN = Plan(steps=900, learning_rate=2e-3, weight_decay=0.05, seed=0)
FLOOR = 0.95  # held-out accuracy below which the model is not kept
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}


def make(host: Host, folder: Path) -> None:
    """Train and write the model's folder.

    Raises:
        ExperimentError: ``bad_model`` if held-out accuracy is below 0.95.
    """
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        **SHAPE,
        image_size=8,
        patch_size=2,
        num_channels=1,
        initializer_range=0.1,
        id2label=dict(enumerate(digits.LABELS)),
        label2id={name: i for i, name in enumerate(digits.LABELS)},
    )
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": False,
        "size": {"height": 8, "width": 8},
        "do_rescale": True,
        "rescale_factor": 1 / digits.LEVELS,
        "do_normalize": True,
        "image_mean": [0.5],
        "image_std": [0.5],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=1))
    config.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(PLAN.seed)
        module = ViTForImageClassification(config)
    pixels, targets = _arrays(folder, digits.digits("train"))
    held_out = _arrays(folder, digits.digits("validation"))
    losses = train(
        module,
        _batches(pixels, targets),
        PLAN,
        lambda p: host.tell(p.sentence("training digits-vit"), p.fraction),
    )
    with torch.inference_mode():
        predicted = module(pixel_values=torch.from_numpy(held_out[0])).logits.argmax(-1).numpy()
    accuracy = float((predicted == held_out[1]).mean())
    if accuracy < FLOOR:
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"digits-vit reached only {accuracy:.3f} on held-out digits; {FLOOR} is needed",
            fix="Try again; if it repeats, report it with the versions of torch and transformers.",
        )
    module.save_pretrained(folder)
    card = {"validation_accuracy": accuracy, "last_loss": losses[-1]}
    (folder / "training.json").write_text(json.dumps(card, indent=1))
    host.tell(f"digits-vit is ready: {accuracy:.3f} of {len(predicted):,} held-out digits right", 1.0)


def _arrays(folder: Path, rows: Examples) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    import numpy as np

    assert rows.images is not None and rows.labels is not None
    return image_pixels(folder, rows.images), np.array([digits.LABELS.index(name) for name in rows.labels])


def _batches(pixels: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Iterator[dict[str, torch.Tensor]]:
    """Endless seeded batches, each image moved by at most one pixel: 1,257 images alone are quickly learnt by heart."""
    import numpy as np
    import torch

    chance = random.Random(PLAN.seed)
    order = list(range(len(pixels)))
    while True:
        chance.shuffle(order)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            moved = np.stack([_move(pixels[row], chance.choice((-1, 0, 0, 0, 0, 0, 0, 1)), 2) for row in rows])
            moved = np.stack([_move(image, chance.choice((-1, 0, 0, 0, 0, 0, 0, 1)), 1) for image in moved])
            yield {"pixel_values": torch.from_numpy(moved), "labels": torch.from_numpy(targets[rows])}


def _move(image: npt.NDArray[Any], by: int, axis: int) -> npt.NDArray[Any]:
    """The image (channels, height, width) moved by ``by`` pixels; what comes in is background."""
    import numpy as np

    if by == 0:
        return image
    moved = np.roll(image, by, axis)
    edge: list[slice | int] = [slice(None)] * image.ndim
    edge[axis] = 0 if by > 0 else -1
    moved[tuple(edge)] = image.min()
    return moved
