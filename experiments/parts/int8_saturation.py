"""Do 8-bit products saturate on this machine? Asked of the kernels themselves, with the largest codes there are.

64 products of the largest weight (127, or 64 with 7 bits) and the largest activation (255): where a kernel adds
pairs into a saturating int16 (see ``parts/int8_range.py``), the sum comes out too small (FC-019).
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

#: Inner size of the trial product.
K = 64
#: Errors above it can't be rounding.
TOLERANCE = 0.01


@cache
def onnx_saturation(reduce_range: bool) -> float:
    """Relative error of ONNX Runtime's ``MatMulInteger`` at the largest codes; 0 where products are exact."""
    from onnx import TensorProto, helper, numpy_helper

    from experiments.parts.onnx_probe import open_quietly

    weight = 64 if reduce_range else 127
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["y"])],
        "saturation",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [8, K])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [8, 32])],
        [numpy_helper.from_array(np.full((K, 32), weight, np.int8), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (sums,) = open_quietly(model.SerializeToString(), 1).run(None, {"a": np.full((8, K), 255, np.uint8)})
    exact = K * weight * 255
    return float(np.abs(sums.astype(np.float64) - exact).max() / exact)


@cache
def torch_saturation(reduce_range: bool) -> float:
    """Relative error of torch's dynamic linear kernel at the largest codes; about 0 where products are exact."""
    import torch

    from experiments.parts.quantized_linear import DynamicInt8Linear

    layer = DynamicInt8Linear(torch.full((32, K), 127, dtype=torch.int8), torch.ones(32), None, reduce_range)
    exact = K * 127.0
    return float((layer(torch.ones(8, K)) - exact).abs().max() / exact)


def saturation_warning(form: Literal["onnx", "torch"], reduce_range: bool) -> str | None:
    """What a reader must know if products saturate here, or None."""
    error = onnx_saturation(reduce_range) if form == "onnx" else torch_saturation(reduce_range)
    if error <= TOLERANCE:
        return None
    return (
        f"8-bit products saturate on this CPU: the largest codes come out {error:.0%} too small with reduce_range "
        f"{'on' if reduce_range else 'off'}; set reduce_range to 'auto'"
    )
