"""One cell to what a role needs: text, class name, number or pixels. Types are never guessed past each other."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?")
_COMMA = re.compile(r"[+-]?\d+,\d+")


class CellError(Exception):
    """A cell that can't play its role: found and expected, in words."""


def text_cell(value: Any) -> str:
    """A string as it is; 'null', 'NA' and 'nan' are words like others."""
    if isinstance(value, str):
        return value
    raise CellError(f"{kind_of(value)}, expected string")


def label_cell(value: Any) -> str:
    """A class name: strings as they are, whole numbers as digits, so that 1 and '1' are one class."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    raise CellError(f"{kind_of(value)}, expected string or whole number")


def score_cells(values: Sequence[Any]) -> tuple[list[float], str | None]:
    """A column of numbers, and a note if they are written with decimal commas.

    The decimal mark is one for the whole column: as soon as one value has a decimal comma, a point can only group
    thousands.

    Raises:
        CellError: with ``row`` (index into ``values``) for what is no number, not finite or written both ways.
    """
    commas = any(isinstance(v, str) and "," in v for v in values)
    numbers = []
    for row, value in enumerate(values):
        try:
            numbers.append(_number(value, commas))
        except CellError as error:
            error.row = row  # type: ignore[attr-defined]
            raise
    return numbers, "decimal commas" if commas else None


def image_cell(value: Any) -> npt.NDArray[Any]:
    """Pixels (H, W) or (H, W, C): nested lists of numbers, or an encoded image (needs Pillow)."""
    import numpy as np

    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        value = value["bytes"]
    if isinstance(value, bytes):
        return _decoded(value)
    if not isinstance(value, list):
        raise CellError(f"{kind_of(value)}, expected an image")
    try:
        pixels = np.array(value)
    except ValueError:
        raise CellError("rows of different lengths, expected an image") from None
    if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "uif":
        raise CellError(f"{pixels.ndim} dimensions of {pixels.dtype}, expected an image of numbers")
    return pixels.astype(np.uint8) if _is_byte(pixels) else pixels.astype(np.float32)


def kind_of(value: Any) -> str:
    """The kind of a value as its file format calls it."""
    names = {
        bool: "boolean",
        int: "number",
        float: "number",
        str: "string",
        list: "list",
        dict: "object",
        bytes: "bytes",
    }
    return "missing" if value is None else names.get(type(value), type(value).__name__)


def _number(value: Any, commas: bool) -> float:
    import math

    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise CellError(f"{kind_of(value)}, expected number")
    if isinstance(value, str):
        text = value.strip()
        if commas and "." in text and not _THOUSANDS.fullmatch(text):
            raise CellError(f"{text[:40]!r} has a decimal point, other rows have decimal commas")
        if commas and "," in text and not (_COMMA.fullmatch(text) or _THOUSANDS.fullmatch(text)):
            raise CellError(f"{text[:40]!r}, expected number")
        try:
            value = float(text.replace(".", "").replace(",", ".") if commas else text)
        except ValueError:
            raise CellError(f"{text[:40]!r}, expected number") from None
    if not math.isfinite(value):
        raise CellError(f"{value}, expected a finite number")
    return float(value)


def _decoded(data: bytes) -> npt.NDArray[np.uint8]:
    import numpy as np

    try:
        from PIL import Image, UnidentifiedImageError  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise CellError("an encoded image, which needs the package Pillow on this machine") from None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError):
        raise CellError("not a readable image") from None


def _is_byte(pixels: npt.NDArray[Any]) -> bool:
    return bool(pixels.dtype.kind in "ui" and pixels.size and pixels.min() >= 0 and pixels.max() <= 255)
