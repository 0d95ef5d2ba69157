"""Olive: one workflow a variant, all in one process and with one cache, so that the export is made once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> None:
    """Run the five workflows; Olive evaluates the latency of each at both batch sizes."""
    import torch
    from olive.data.registry import Registry
    from olive.workflows import run
    from transformers import AutoTokenizer

    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    length = job["sequence_length"]
    # In the order of the model's arguments: Olive exports by position.
    order = ("input_ids", "attention_mask", "token_type_ids")
    names = [name for name in order if name in tokenizer.model_input_names]

    class Rows(torch.utils.data.Dataset):
        def __init__(self, texts: list[str], pad: bool) -> None:
            padding = "max_length" if pad else False
            self.rows = [
                {
                    k: v[0]
                    for k, v in tokenizer(
                        t, padding=padding, truncation=True, max_length=length, return_tensors="pt"
                    ).items()
                }
                for t in texts
            ]

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            return self.rows[index], torch.tensor(0)

    @Registry.register_dataset("steelyard_calibration")
    def calibration(**_: Any) -> Rows:
        return Rows(job["calibration"], False)

    @Registry.register_dataset("steelyard_requests")
    def requests(**_: Any) -> Rows:
        return Rows(job["requests"], True)

    def data(name: str, kind: str, batch: int) -> dict[str, Any]:
        return {
            "name": name,
            "type": "DataContainer",
            "load_dataset_config": {"type": kind},
            "dataloader_config": {"batch_size": batch},
        }

    metrics = [
        {
            "name": f"latency{batch}",
            "type": "latency",
            "data_config": f"requests{batch}",
            "sub_types": [
                {
                    "name": "p50",
                    "priority": 1 if batch == "1" else 2,
                    "metric_config": {"warmup_num": job["warmup"], "repeat_test_num": count, "sleep_num": 0},
                }
            ],
        }
        for batch, count in job["iterations"].items()
    ]
    convert = {
        "type": "OnnxConversion",
        "target_opset": 17,
        "use_dynamo_exporter": False,
        "device": "cpu",
    }
    integers = {
        "precision": "int8",
        "per_channel": True,
        "reduce_range": job["reduce_range"],
        "op_types_to_quantize": ["MatMul", "Gemm"],
    }
    second: dict[str, dict[str, Any] | None] = {
        "FP32": None,
        "INT8 dynamic": {"type": "OnnxDynamicQuantization", **integers},
        "INT8 static": {"type": "OnnxStaticQuantization", **integers, "data_config": "calibration"},
        "FP16": {"type": "OnnxFloatToFloat16", "keep_io_types": True},
        "INT4": {"type": "OnnxBlockWiseRtnQuantization", "block_size": 32, "is_symmetric": False, "accuracy_level": 4},
    }
    out = Path(job["out"])
    artifacts: dict[str, str | None] = {}
    p50: dict[str, dict[str, float]] = {}
    missing: dict[str, str] = {}
    for name, step in second.items():
        folder = out / name.replace(" ", "-").lower()
        config = {
            "input_model": {
                "type": "HfModel",
                "model_path": job["model"],
                "task": job["task"],
                "io_config": {
                    "input_names": names,
                    "input_shapes": [[1, length]] * len(names),
                    "input_types": ["int64"] * len(names),
                    "output_names": ["logits"],
                    "dynamic_axes": {
                        **{n: {"0": "batch_size", "1": "sequence_length"} for n in names},
                        "logits": {"0": "batch_size"},
                    },
                },
            },
            "systems": {
                "here": {
                    "type": "LocalSystem",
                    "accelerators": [{"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}],
                }
            },
            "data_configs": [
                data("calibration", "steelyard_calibration", 1),
                *(data(f"requests{batch}", "steelyard_requests", int(batch)) for batch in job["iterations"]),
            ],
            "evaluators": {"latency": {"metrics": metrics}},
            "evaluator": "latency",
            "passes": {"convert": convert, **({"change": step} if step else {})},
            "host": "here",
            "target": "here",
            "evaluate_input_model": False,
            "cache_dir": str(out / "cache"),
            "output_dir": str(folder),
            "log_severity_level": 3,
        }
        try:
            made = run(config).get_best_candidate()
            artifacts[name] = str(made.model_path)
            told = made.metrics_value
            p50[name] = {b: float(told[f"latency{b}-p50"]["value"]) for b in job["iterations"]}
        except Exception as error:  # whatever a peer can't do is said in the table
            missing[name] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps({"artifacts": artifacts, "p50_ms": p50, "missing": missing}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
