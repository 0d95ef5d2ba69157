"""What a saved artifact holds, read from its files: bytes by dtype, size, hash."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
            for _, dtype, size in _safetensors(folder / name):
                total[dtype] += size
        elif name.endswith(".onnx"):
            total += _onnx(folder / name)
    return total


def _safetensors(path: Path) -> Iterator[tuple[str, str, int]]:
    """Name, dtype and bytes of every tensor, from the header."""
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, _SAFETENSORS.get(entry["dtype"], entry["dtype"].lower()), end - begin


def _onnx(path: Path) -> Counter[str]:
    import onnx

    found: Counter[str] = Counter()
    for _, dtype, size in _initializers(onnx.load(path, load_external_data=False).graph):
        found[dtype] += size
    return found


def streamed_bytes(folder: Path, embeddings: frozenset[str]) -> int:
    """Weight bytes that every step must read: all but lookup tables, of which a step reads only some rows.

    Args:
        embeddings: names of the module's lookup tables, tied ones left out since a head reads them whole. In an ONNX
            graph they are the initializers that only ``Gather`` reads.
    """
    total = 0
    for name in weight_files(folder):
        if name.endswith(".safetensors"):
            total += sum(size for tensor, _, size in _safetensors(folder / name) if not _of_table(tensor, embeddings))
        elif name.endswith(".onnx"):
            total += _streamed_onnx(folder / name)
    return total


def _of_table(tensor: str, tables: frozenset[str]) -> bool:
    """True for the weight of a lookup table, and for codes and scales of one that was packed later."""
    return f"{tensor.rpartition('.')[0]}.weight" in tables


def _streamed_onnx(path: Path) -> int:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            readers.setdefault(name, set()).add(node.op_type if position == 0 else "")
    return sum(size for name, _, size in _initializers(graph) if readers.get(name) != {"Gather"})


def _initializers(graph: Any) -> Iterator[tuple[str, str, int]]:
    """Name, dtype and bytes of every initializer."""
    import onnx

    for tensor in graph.initializer:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        yield tensor.name, str(dtype), math.prod(tensor.dims) * dtype.itemsize


def artifact_record(folder: Path, form: str, label: Label, parameters: int, dtype: str | None = None) -> ArtifactRecord:
    """The record of a finished artifact; sizes come from the disk.

    ``dtype``: the quantized format, where only some weights have it; else that of most bytes is told.
    """
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
        dtype=dtype or (dtypes.most_common(1)[0][0] if dtypes else "unknown"),
    )
