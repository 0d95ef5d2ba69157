"""The same conversions and timings by other means; each file runs alone, in an environment of its own.

``python FILE JOB.json``: the job names model, rows, iterations and the output folder. The last line printed is JSON:
``artifacts`` (variant -> ONNX file, or null where it keeps none), ``p50_ms`` (variant -> batch size -> ms), ``missing``
(variant -> why there is none).
"""
