"""Images to a vision model's input, by the numbers of its own preprocessor_config.json. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy.typing as npt


def image_pixels(folder: Path, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Rescale, normalise and lay out ``images`` for the model in ``folder``.

    ``images`` is (N, H, W) or (N, H, W, C); the result is float32 (N, C, H, W). Grey images serve a model of three
    channels by repetition. Sizes must already be those of the model.

    Raises:
        ExperimentError: ``bad_dataset`` if size or channels can't serve the model.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    processor = folder / "preprocessor_config.json"
    rules = json.loads(processor.read_text(encoding="utf-8")) if processor.is_file() else {}
    channels = int(config.get("num_channels", 3))
    pixels = images[..., None] if images.ndim == 3 else images
    if pixels.shape[-1] == 1 and channels > 1:
        pixels = np.repeat(pixels, channels, axis=-1)
    size = _size(config)
    if pixels.shape[-1] != channels or (size is not None and pixels.shape[1:3] != size):
        wanted = f"{channels} x {size[0]} x {size[1]}" if size else f"{channels} channels"
        raise ExperimentError(
            FailureKind.BAD_DATASET,
            f"the images are {pixels.shape[-1]} x {pixels.shape[1]} x {pixels.shape[2]} (channels, height, width); "
            f"the model takes {wanted}",
            fix="Resize the images beforehand, or choose a model of their size.",
            field="dataset",
        )
    values = pixels.astype(np.float32)
    if rules.get("do_rescale", True):
        values = values * np.float32(rules.get("rescale_factor", 1 / 255))
    if rules.get("do_normalize", "image_mean" in rules):
        mean = np.array(rules.get("image_mean", 0.5), dtype=np.float32)
        deviation = np.array(rules.get("image_std", 0.5), dtype=np.float32)
        values = (values - mean) / deviation
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2), dtype=np.float32)


def _size(config: dict[str, Any]) -> tuple[int, int] | None:
    """(height, width) of the model's input."""
    size = config.get("image_size")
    if isinstance(size, int):
        return size, size
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    return None
