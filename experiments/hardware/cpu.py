"""What the CPU is called and which instructions it has for compressed arithmetic."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

#: /proc/cpuinfo flag -> our name, in display order; only what decides the speed of compressed models.
_X86 = {
    flag: flag
    for flag in (
        "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx_vnni_int8", "avx512f", "avx512bw", "avx512_vnni",
        "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
    )
}  # fmt: skip
_ARM = {
    "asimd": "neon",
    "asimdhp": "neon_fp16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "neon_bf16",
    "sve": "sve",
    "sve2": "sve2",
    "sme": "sme",
}
#: macOS sysctl -> our name.
_APPLE = {
    "hw.optional.AdvSIMD": "neon",
    "hw.optional.arm.FEAT_FP16": "neon_fp16",
    "hw.optional.arm.FEAT_DotProd": "dotprod",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "neon_bf16",
    "hw.optional.arm.FEAT_SME": "sme",
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
}

#: dtype -> (units that compute in it, what they are called, what happens without them).
_UNITS: dict[str, tuple[frozenset[str], str, str]] = {
    "float16": (
        frozenset({"avx512_fp16", "amx_fp16", "neon_fp16"}),
        "fp16 arithmetic units",
        "float16 is converted to float32 and back at every step and can be many times slower than float32",
    ),
    "bfloat16": (
        frozenset({"avx512_bf16", "amx_bf16", "neon_bf16"}),
        "bf16 units",
        "bfloat16 is converted to float32 and back at every step and can be many times slower than float32",
    ),
    "int8": (
        frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8", "dotprod", "i8mm"}),
        "int8 dot-product units (VNNI, AMX or dotprod)",
        "int8 gains less than its size suggests, and 8-bit products can saturate without reduce_range",
    ),
}
_ALIASES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "uint8": "int8", "qint8": "int8"}


def cpu_model(root: Path = Path("/")) -> str:
    """The CPU's name as its maker gives it, else the architecture."""
    fields = _cpuinfo(root)
    for key in ("model name", "Model", "Hardware"):
        if fields.get(key):
            return " ".join(fields[key].split())
    if platform.system() == "Darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    implementer, part = fields.get("CPU implementer"), fields.get("CPU part")
    if implementer and part:
        return f"{platform.machine()} (implementer {implementer}, part {part})"
    return platform.processor() or platform.machine() or "unknown CPU"


def isa(root: Path = Path("/")) -> tuple[str, ...]:
    """Instruction sets that matter here, e.g. ('avx2', 'avx512_vnni'); empty if the system does not tell."""
    fields = _cpuinfo(root)
    if "flags" in fields:
        flags = set(fields["flags"].split())
        return tuple(name for flag, name in _X86.items() if flag in flags)
    if "Features" in fields:
        flags = set(fields["Features"].split())
        return tuple(name for flag, name in _ARM.items() if flag in flags)
    if platform.system() == "Darwin":
        return tuple(name for key, name in _APPLE.items() if _sysctl(key) == "1")
    return ()


def clock_mhz(cores: tuple[int, ...] | None = None) -> float | None:
    """Mean present clock of ``cores`` (default: all) in MHz, or None if the system does not tell."""
    import psutil

    try:
        clocks = [c.current for c in psutil.cpu_freq(percpu=True) or [] if c.current]
    except (OSError, NotImplementedError, RuntimeError):  # virtual machines and some ARM boards have no such reading
        return None
    chosen = [clocks[c] for c in cores or () if c < len(clocks)] or clocks
    return round(sum(chosen) / len(chosen), 1) if chosen else None


def explain_slow(dtype: str, isa: tuple[str, ...]) -> str | None:
    """One sentence on why ``dtype`` is not fast on a CPU with these instructions, or None if it has the units.

    Args:
        dtype: 'float16', 'bfloat16', 'int8' or an everyday name of theirs; others give None.
        isa: as :func:`isa` gives it; empty means unknown, which explains nothing.
    """
    entry = _UNITS.get(_ALIASES.get(dtype, dtype))
    if entry is None or not isa or entry[0] & set(isa):
        return None
    return f"this CPU has no {entry[1]}: {entry[2]}"


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first value of each field of /proc/cpuinfo; empty where there is none."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _sysctl(key: str) -> str | None:
    done = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, timeout=5, check=False)
    return done.stdout.strip() or None
