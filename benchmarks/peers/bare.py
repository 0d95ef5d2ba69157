"""A bare script: what a careful person would write by hand to make and time the variants, without any product."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> None:
    """Export once, convert four times, time all five."""
    import numpy as np
    import onnx
    import onnxruntime
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from optimum.exporters.onnx import main_export
    from transformers import AutoTokenizer

    torch.set_num_threads(job["threads"])
    out = Path(job["out"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    length = job["sequence_length"]

    def encoded(texts: list[str], pad: bool) -> dict[str, Any]:
        padding = "max_length" if pad else False
        return dict(tokenizer(texts, padding=padding, truncation=True, max_length=length, return_tensors="np"))

    main_export(job["model"], out / "fp32", task=job["task"], do_validation=False)
    source = out / "fp32" / "model.onnx"
    files = {"FP32": source}
    for name in ("INT8 dynamic", "INT8 static", "FP16", "INT4"):
        (out / name).mkdir()
        files[name] = out / name / "model.onnx"
    integers = {
        "weight_type": QuantType.QInt8,
        "per_channel": True,
        "reduce_range": job["reduce_range"],
        "op_types_to_quantize": ["MatMul", "Gemm"],
    }
    quantize_dynamic(source, files["INT8 dynamic"], **integers)
    wanted = {slot.name for slot in onnx.load(source, load_external_data=False).graph.input}

    class Rows(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(job["calibration"])

        def get_next(self) -> dict[str, Any] | None:
            text = next(self.rows, None)
            return None if text is None else {k: v for k, v in encoded([text], False).items() if k in wanted}

    quantize_static(source, files["INT8 static"], Rows(), **integers)
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), files["FP16"])
    narrow = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=False, accuracy_level=4)
    narrow.process()
    narrow.model.save_model_to_file(str(files["INT4"]), False)

    inputs = encoded(job["requests"], True)
    count = len(job["requests"])
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = job["threads"]
    p50: dict[str, dict[str, float]] = {}
    for name, path in files.items():
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        p50[name] = {}
        for batch, iterations in job["iterations"].items():
            size, times = int(batch), []
            for number in range(job["warmup"] + iterations):
                rows = [(number * size + i) % count for i in range(size)]
                feeds = {k: np.ascontiguousarray(v[rows]) for k, v in inputs.items() if k in wanted}
                started = time.perf_counter()
                session.run(None, feeds)
                times.append(time.perf_counter() - started)
            p50[name][batch] = statistics.median(times[job["warmup"] :]) * 1e3
    print(json.dumps({"artifacts": {n: str(p) for n, p in files.items()}, "p50_ms": p50, "missing": {}}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
