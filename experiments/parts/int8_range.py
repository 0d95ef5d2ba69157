"""When 8-bit products need 7-bit operands.

Without VNNI (x86 'dot product of bytes'), int8 kernels multiply with ``vpmaddubsw``, which adds two u8 x s8 products
into a *saturating* int16: 2 x 255 x 127 = 64,770 > 32,767 is clipped and the result is silently wrong. With one
operand held to 7 bits, 2 x 255 x 64 = 32,640 fits. (ONNX Runtime documentation, "Quantize ONNX models"; FBGEMM.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

#: Instruction sets with exact 8-bit dot products: x86 VNNI and AMX, Arm dot product and matrix multiply.
EXACT = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8", "dotprod", "i8mm"})


def has_exact_dot(isa: Sequence[str]) -> bool:
    """True if this CPU multiplies bytes without saturation; an unknown CPU (empty ``isa``) is taken not to."""
    return bool(EXACT.intersection(isa))


def reduce_range(setting: bool | Literal["auto"], isa: Sequence[str]) -> tuple[bool, str]:
    """Whether to use 7 bits, and why, in words for the record."""
    exact = sorted(EXACT.intersection(isa))
    cpu = f"this CPU has {', '.join(exact)}" if exact else "this CPU has no exact 8-bit dot product"
    if setting == "auto":
        return (not exact), f"reduce_range={'off' if exact else 'on'}: {cpu}"
    risk = "; 8-bit products may saturate" if not setting and not exact else ""
    return setting, f"reduce_range={'on' if setting else 'off'} as asked: {cpu}{risk}"
