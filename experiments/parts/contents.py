"""What a saved artifact holds, read from its files: bytes by dtype, size, hash."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from experiments.parts.cache import sha256_folder, weight_files
from experiments.records import ArtifactRecord, Label

_SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


def bytes_by_dtype(folder: Path) -> Counter[str]:
    """Weight bytes by dtype over all weight files of ``folder``, from their headers."""
    total: Counter[str] = Counter()
    for name in weight_files(folder):
        if name.endswith(".safetensors"):
            total += _safetensors(folder / name)
        elif name.endswith(".onnx"):
            total += _onnx(folder / name)
    return total


def _safetensors(path: Path) -> Counter[str]:
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(length))
    found: Counter[str] = Counter()
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            found[_SAFETENSORS.get(entry["dtype"], entry["dtype"].lower())] += end - begin
    return found


def _onnx(path: Path) -> Counter[str]:
    import onnx

    found: Counter[str] = Counter()
    graph = onnx.load(path, load_external_data=False).graph
    for tensor in graph.initializer:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        count = 1
        for dim in tensor.dims:
            count *= dim
        found[str(dtype)] += count * dtype.itemsize
    return found


def artifact_record(folder: Path, form: str, label: Label, parameters: int) -> ArtifactRecord:
    """The record of a finished artifact; sizes come from the disk."""
    files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    weights = weight_files(folder)
    dtypes = bytes_by_dtype(folder)
    return ArtifactRecord(
        sha256=sha256_folder(folder),
        form=form,
        label=label,
        bytes=sum(files[name] for name in weights),
        files=files,
        parameters=parameters,
        dtype=dtypes.most_common(1)[0][0] if dtypes else "unknown",
    )
