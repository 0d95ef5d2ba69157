"""What the CPU says of itself, on x86, ARM and where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.hardware import clock_mhz, cpu_model, explain_slow, isa

X86 = """processor\t: 0
model name\t: Intel(R)  Xeon(R) Platinum 8480+
flags\t\t: fpu sse4_2 avx avx2 f16c fma avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16
"""
OLD = "model name\t: Old CPU\nflags\t\t: fpu sse4_2 avx avx2 fma f16c\n"
ARM = "processor : 0\nFeatures : fp asimd aes asimdhp asimddp i8mm bf16 sve\nCPU implementer : 0x41\nCPU part : 0xd40\n"


def cpu(tmp_path: Path, text: str) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    return tmp_path


def test_an_x86_cpu_names_its_units(tmp_path: Path) -> None:
    root = cpu(tmp_path, X86)
    assert cpu_model(root) == "Intel(R) Xeon(R) Platinum 8480+"
    assert {"avx2", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8"} <= set(isa(root))
    assert all(explain_slow(dtype, isa(root)) is None for dtype in ("float16", "bfloat16", "int8", "float32"))


def test_an_arm_cpu_names_its_units(tmp_path: Path) -> None:
    root = cpu(tmp_path, ARM)
    assert set(isa(root)) == {"neon", "neon_fp16", "dotprod", "i8mm", "neon_bf16", "sve"}
    assert "0xd40" in cpu_model(root)
    assert explain_slow("int8", isa(root)) is None


@pytest.mark.parametrize(
    ("dtype", "word"), [("float16", "fp16"), ("fp16", "fp16"), ("bfloat16", "bf16"), ("bf16", "bf16"), ("int8", "int8")]
)
def test_a_cpu_without_the_units_gets_the_reason_in_words(tmp_path: Path, dtype: str, word: str) -> None:
    sentence = explain_slow(dtype, isa(cpu(tmp_path, OLD)))
    assert sentence is not None
    assert sentence.startswith(f"this CPU has no {word}")


def test_an_unknown_cpu_explains_nothing(tmp_path: Path) -> None:
    assert isa(tmp_path) == ()
    assert explain_slow("int8", ()) is None
    assert explain_slow("float32", ("avx2",)) is None
    assert cpu_model(tmp_path)


def test_this_cpu_has_a_name_and_a_plausible_clock() -> None:
    assert cpu_model()
    clock = clock_mhz()
    assert clock is None or 100 < clock < 10_000
