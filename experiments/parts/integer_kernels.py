"""How many products of a quantized graph ONNX Runtime really computes in integers, asked of its optimised graph."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

#: Kernels that multiply 8-bit codes.
KERNELS = frozenset(
    "MatMulInteger MatMulIntegerToFloat DynamicQuantizeMatMul QLinearMatMul QGemm ConvInteger QLinearConv".split()
)


def integer_products(path: Path, threads: int) -> int:
    """Nodes with an integer kernel after all fusions; pairs of quantizing nodes that were not fused compute wide."""
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    kinds = Counter(node.op_type for node in graph.node)
    return sum(kinds[kind] for kind in KERNELS)
