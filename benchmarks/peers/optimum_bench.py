"""optimum-benchmark: one benchmark a variant and batch size, each in the process that its launcher spawns.

It times what it converts on the fly and keeps no artifact; it has no 4-bit weights. Its pins are those of optimum 1.27,
which knows only the older exporter of torch and where its parts were: what moved is put back, in the spawned
processes too.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.onnx.symbolic_opset14 as public
from torch.onnx._internal.torchscript_exporter import symbolic_opset14 as moved

torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)
for _name in dir(moved):  # optimum looks for them where they used to be
    if not hasattr(public, _name):
        setattr(public, _name, getattr(moved, _name))


def main(job: dict[str, Any]) -> None:
    """Run the benchmarks that there are."""
    os.environ["DISABLE_WARNINGS"] = "1"
    from optimum_benchmark import Benchmark, BenchmarkConfig, InferenceConfig, ORTConfig, ProcessConfig

    integers = {
        "per_channel": True,
        "reduce_range": job["reduce_range"],
        "operators_to_quantize": ["MatMul", "Gemm"],
        "weights_dtype": "QInt8",
    }
    dynamic = {"is_static": False, "format": "QOperator", "mode": "IntegerOps", "activations_dtype": "QUInt8"}
    variants: dict[str, dict[str, Any]] = {
        "FP32": {},
        "INT8 dynamic": {"quantization": True, "quantization_config": {**dynamic, **integers}},
        "FP16": {"torch_dtype": "float16"},
    }
    missing = {
        "INT8 static": "its calibration takes generated random inputs only, no rows",
        "INT4": "it has no 4-bit weights for ONNX Runtime",
    }
    p50: dict[str, dict[str, float]] = {}
    for name, settings in variants.items():
        for batch, iterations in job["iterations"].items():
            config = BenchmarkConfig(
                name=f"{name}-{batch}",
                launcher=ProcessConfig(start_method="spawn"),
                backend=ORTConfig(
                    model=job["model"],
                    task=job["task"],
                    library="transformers",
                    device="cpu",
                    export=True,
                    session_options={"intra_op_num_threads": job["threads"]},
                    **settings,
                ),
                scenario=InferenceConfig(
                    iterations=iterations,
                    duration=0,
                    warmup_runs=job["warmup"],
                    latency=True,
                    input_shapes={"batch_size": int(batch), "sequence_length": job["sequence_length"]},
                ),
            )
            try:
                report = Benchmark.launch(config)
                p50.setdefault(name, {})[batch] = float(report.forward.latency.p50) * 1e3
            except Exception as error:  # whatever a peer can't do is said in the table
                missing[name] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps({"artifacts": dict.fromkeys(p50), "p50_ms": p50, "missing": missing}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
