"""Measures one device's ceilings and prints them as JSON. Run as a script in a process of its own, never imported.

Usage: python -P measure_ceilings.py DEVICE THREADS COPY_BYTES [CORE,CORE,...]

A ceiling is the best that any kernel at hand reaches. On a CPU, torch's and ONNX Runtime's products are tried, at the
shapes of encoders besides square ones: whichever library a model later runs on, it can't beat its own best kernel.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

#: Seconds for each dtype and library, and for the copy; sizes grow only while the next one fits.
BUDGET_S = 0.45
DTYPES = ("float32", "bfloat16", "float16", "int8")
#: (rows, inner, columns) of a model's products: tokens x width x width of the feed-forward block.
SHAPES = ((128, 384, 1536), (512, 768, 3072), (1024, 1024, 4096))

Seconds = Callable[[Callable[[], Any]], float]


def main(device: str, threads: int, copy_bytes: int, cores: str = "") -> None:
    """Print ``{"copy_bytes_per_s": .., "gemm_flops_per_s": {dtype: ..}}``."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    import torch

    torch.set_num_threads(threads)

    def finished() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    def seconds(call: Callable[[], Any]) -> float:
        finished()
        start = time.perf_counter()
        call()
        finished()
        return time.perf_counter() - start

    copy = copy_rate(torch, device, copy_bytes, seconds)
    gemm: dict[str, float] = {}
    for dtype in DTYPES:
        products = [torch_products(torch, device, dtype)]
        if not device.startswith("cuda"):
            products.append(onnx_products(dtype, threads))
        rates = [rate for rate in (best_rate(kind, seconds, dtype) for kind in products) if rate is not None]
        if rates:
            gemm[dtype] = max(rates)
    print(json.dumps({"copy_bytes_per_s": copy, "gemm_flops_per_s": gemm}))  # noqa: T201 - its only output


def copy_rate(torch: Any, device: str, size: int, seconds: Seconds) -> float:
    """Bytes read plus bytes written per second of the best copy between two buffers of ``size`` bytes (as STREAM)."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    target.copy_(source)  # touches every page
    best, spent = float("inf"), 0.0
    while spent < BUDGET_S:
        took = seconds(lambda: target.copy_(source))
        best, spent = min(best, took), spent + took
    return 2.0 * (size // 4 * 4) / best


def sizes(device: str) -> list[tuple[int, int, int]]:
    """Products to try, by rising work: squares that double from 128, and a model's shapes."""
    largest = 8192 if device.startswith("cuda") else 2048
    squares = [(n, n, n) for n in (2**k for k in range(7, 14)) if n <= largest]
    return sorted([*squares, *SHAPES], key=lambda shape: shape[0] * shape[1] * shape[2])


def torch_products(torch: Any, device: str, dtype: str) -> Iterator[tuple[int, Callable[[], Any]]]:
    """(operations, product) of every size; raises RuntimeError where there is no kernel."""
    for m, k, n in sizes(device):
        if dtype == "int8":
            a = torch.randint(-127, 127, (m, k), dtype=torch.int8, device=device)
            b = torch.randint(-127, 127, (k, n), dtype=torch.int8, device=device)
            yield 2 * m * k * n, partial(torch._int_mm, a, b)
        else:
            a = torch.randn(m, k, device=device).to(getattr(torch, dtype))
            b = torch.randn(k, n, device=device).to(getattr(torch, dtype))
            yield 2 * m * k * n, partial(torch.matmul, a, b)


def onnx_products(dtype: str, threads: int) -> Iterator[tuple[int, Callable[[], Any]]]:
    """The same by ONNX Runtime with constant weights, which it packs beforehand; nothing where it isn't installed.

    int8 is the product of dynamic quantization: the better of unsigned and signed weights. float16 and bfloat16 are
    left out where the CPU provider only widens them.
    """
    try:
        import numpy as np
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return
    if dtype not in {"float32", "int8"}:
        return
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    rng = np.random.default_rng(0)
    for m, k, n in sizes("cpu"):
        for signed in (False, True) if dtype == "int8" else (False,):
            if dtype == "int8":
                kind, result, operator = TensorProto.UINT8, TensorProto.INT32, "MatMulInteger"
                a = rng.integers(0, 127, (m, k), np.uint8)
                b = rng.integers(-63, 63, (k, n), np.int8) if signed else rng.integers(0, 127, (k, n), np.uint8)
            else:
                kind, result, operator = TensorProto.FLOAT, TensorProto.FLOAT, "MatMul"
                a = rng.standard_normal((m, k), np.float32)
                b = rng.standard_normal((k, n), np.float32)
            graph = helper.make_graph(
                [helper.make_node(operator, ["a", "b"], ["c"])],
                "product",
                [helper.make_tensor_value_info("a", kind, (m, k))],
                [helper.make_tensor_value_info("c", result, (m, n))],
                [numpy_helper.from_array(b, "b")],
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            value = onnxruntime.OrtValue.ortvalue_from_numpy(a)
            binding = session.io_binding()
            binding.bind_ortvalue_input("a", value)
            binding.bind_output("c", "cpu")
            yield 2 * m * k * n, partial(session.run_with_iobinding, binding)


def best_rate(products: Iterator[tuple[int, Callable[[], Any]]], seconds: Seconds, dtype: str) -> float | None:
    """FLOP/s (multiply and add apart) of the best product; None if there is none.

    Goes on while the next size fits the budget, by what the last one took: so a dtype without hardware support, a
    hundred times slower, does not hold up the others.
    """
    spent, best, rate = 0.0, 0.0, float("inf")
    try:
        for operations, product in products:
            if spent and spent + 2 * operations / rate > BUDGET_S:
                break
            first = seconds(product)  # kernels are chosen and compiled here
            took = min(seconds(product) for _ in range(5 if first < BUDGET_S / 20 else 1))
            spent += first + took
            rate = operations / took
            best = max(best, rate)
    except Exception as error:  # torch and ONNX Runtime name a missing kernel by many types
        if best == 0.0:
            print(f"{dtype}: {error}", file=sys.stderr)  # noqa: T201
            return None
    return best or None


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5])
