"""What a careful person would write by hand: load, export, quantize, time both interleaved, without Steelyard.

``python bare_onnxruntime.py MODEL_FOLDER REQUESTS.npz JSON``: JSON holds ``blocks`` (pairs), ``requests`` (per side and
block), ``task``, ``threads`` and ``reduce_range``. Prints one JSON line with the seconds of each part and the medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main(model: str, requests: str, options: dict[str, Any]) -> None:
    """Do the whole job once and print what it took."""
    seconds: dict[str, float] = {}
    last = time.monotonic()

    def lap(name: str) -> None:
        nonlocal last
        seconds[name] = round(time.monotonic() - last, 3)
        last = time.monotonic()

    import numpy as np
    import onnxruntime
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from optimum.exporters.onnx import main_export

    torch.set_num_threads(options["threads"])
    lap("import")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        main_export(model, folder, task=options["task"], do_validation=False)
        lap("load and export")
        quantize_dynamic(
            folder / "model.onnx",
            folder / "int8.onnx",
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=options["reduce_range"],
            op_types_to_quantize=["MatMul", "Gemm"],
        )
        lap("quantize")
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options["threads"]
        sessions = {
            side: onnxruntime.InferenceSession(folder / name, settings, providers=["CPUExecutionProvider"])
            for side, name in (("baseline", "model.onnx"), ("candidate", "int8.onnx"))
        }
        lap("open")
    with np.load(requests) as stored:
        arrays = {name: stored[name] for name in stored.files}
    names = {side: {i.name for i in session.get_inputs()} for side, session in sessions.items()}
    count = len(next(iter(arrays.values())))
    times: dict[str, list[int]] = {"baseline": [], "candidate": []}

    def ask(side: str, number: int) -> int:
        row = slice(number % count, number % count + 1)
        inputs = {name: array[row] for name, array in arrays.items() if name in names[side]}
        started = time.monotonic_ns()
        sessions[side].run(None, inputs)
        return time.monotonic_ns() - started

    for side in sessions:
        for number in range(10):
            ask(side, number)
    lap("warm up")
    number = 0
    for block in range(options["blocks"]):
        order = ("baseline", "candidate") if block % 2 else ("candidate", "baseline")
        for side in order:
            for _ in range(options["requests"][side]):
                times[side].append(ask(side, number))
                number += 1
    lap("timing")
    print(
        json.dumps(
            {
                "seconds": seconds,
                "samples": {side: len(values) for side, values in times.items()},
                "p50_ms": {side: statistics.median(values) / 1e6 for side, values in times.items()},
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
