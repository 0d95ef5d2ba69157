"""Safetensors weights read without torch: headers, sharded indexes, counts, and scans for non-finite values.

Only safetensors is ever read: pickle files can run code when they are loaded.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack", ".h5")
MAX_HEADER = 100_000_000  # bytes, the format's own limit

#: Safetensors dtype -> (bytes of one value, numpy dtype of its bits, name as torch says it).
DTYPES: dict[str, tuple[int, str, str]] = {
    "F64": (8, "<u8", "float64"),
    "F32": (4, "<u4", "float32"),
    "F16": (2, "<u2", "float16"),
    "BF16": (2, "<u2", "bfloat16"),
    "F8_E4M3": (1, "u1", "float8_e4m3fn"),
    "F8_E5M2": (1, "u1", "float8_e5m2"),
    "I64": (8, "<i8", "int64"),
    "I32": (4, "<i4", "int32"),
    "I16": (2, "<i2", "int16"),
    "I8": (1, "i1", "int8"),
    "U64": (8, "<u8", "uint64"),
    "U32": (4, "<u4", "uint32"),
    "U16": (2, "<u2", "uint16"),
    "U8": (1, "u1", "uint8"),
    "BOOL": (1, "u1", "bool"),
}
#: A value is NaN or infinite if all these exponent bits are set. E4M3 has no infinity: only its NaN pattern.
_EXPONENT = {"F64": 0x7FF0000000000000, "F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80, "F8_E5M2": 0x7C}
_E4M3_NAN = 0x7F
#: State that models save beside their parameters; not counted as parameters, counted in bytes.
BUFFERS = (
    "position_ids",
    "token_type_ids",
    "inv_freq",
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "relative_position_index",
)
#: Attention masks that old GPT checkpoints carry; -inf is their meaning, not a fault.
MASKS = ("masked_bias", "attn.bias")
_CHUNK = 1 << 24  # values looked at in one go


@dataclass(frozen=True)
class Stored:
    """One tensor in one file. ``offset`` is from the file's start; ``nbytes`` its length."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    @property
    def count(self) -> int:
        """Number of values."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def is_float(self) -> bool:
        """True for the floating-point types."""
        return self.dtype.startswith(("F", "BF"))

    @property
    def is_mask(self) -> bool:
        """True for a stored attention mask: by its name, and one number or four dimensions."""
        return self.name.endswith(MASKS) and len(self.shape) in (0, 4)

    @property
    def is_buffer(self) -> bool:
        """True for state that is not a trained parameter, by its name or its integer type without packing."""
        return self.is_mask or self.name.endswith(BUFFERS) or self.dtype in {"BOOL", "I64"}

    def bits(self) -> npt.NDArray[Any]:
        """The raw values as a flat memory map of unsigned integers (or integers) of their width."""
        import numpy as np

        if self.count == 0:
            return np.zeros(0, dtype=DTYPES[self.dtype][1])
        return np.memmap(self.file, dtype=DTYPES[self.dtype][1], mode="r", offset=self.offset, shape=(self.count,))


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Name -> tensor of all weights in ``folder``; with an index, the index says which file counts.

    Raises:
        ExperimentError: ``bad_model`` for missing shards, cut-off or overlong files, broken headers, tensors that the
            index promises but no file has, a tensor stored twice with different contents, or weights that exist
            only as pickle.
    """
    if (folder / SINGLE).is_file():
        return read_header(folder / SINGLE)
    if (folder / INDEX).is_file():
        return _by_index(folder)
    raise _no_weights(folder)


def read_header(file: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file, checked against the file's size.

    Raises:
        ExperimentError: ``bad_model`` if the header is broken or the size is not what it says.
    """
    status = file.stat()
    return dict(_header(file, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=512)
def _header(file: Path, size: int, _changed: int) -> dict[str, Stored]:
    with file.open("rb") as handle:
        head = handle.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else MAX_HEADER + 1
        if length > min(MAX_HEADER, max(0, size - 8)):
            raise _bad(
                f"{file.name} is not a whole safetensors file: its header claims more bytes than the file's {size:,}"
            )
        raw = handle.read(length)
    try:
        entries = json.loads(raw)
        tensors = {
            name: Stored(
                name,
                entry["dtype"],
                tuple(int(n) for n in entry["shape"]),
                file,
                8 + length + int(entry["data_offsets"][0]),
                int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
            )
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise _bad(f"{file.name} has a broken safetensors header ({type(error).__name__})") from None
    end = max((t.offset + t.nbytes for t in tensors.values()), default=8 + length)
    if end != size:
        raise _bad(f"{file.name} is cut off or damaged: expected {end:,} bytes from the header, the file has {size:,}")
    for tensor in tensors.values():
        if tensor.dtype not in DTYPES:
            raise _bad(f"{file.name}: tensor {tensor.name!r} has the unknown type {tensor.dtype!r}")
        if tensor.nbytes != tensor.count * DTYPES[tensor.dtype][0] or tensor.offset < 8 + length:
            raise _bad(
                f"{file.name}: tensor {tensor.name!r} has {tensor.nbytes:,} bytes, which is not its shape's size"
            )
    return tensors


def _by_index(folder: Path) -> dict[str, Stored]:
    try:
        weight_map: dict[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        files = sorted({str(name) for name in weight_map.values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _bad(f"{INDEX} is broken: it must map tensor names to files under 'weight_map'") from None
    for name in files:
        if Path(name).name != name:
            raise _bad(f"{INDEX} names {name!r}, which is not a file of this folder")
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        parts = [f"{name} ({sum(f == name for f in weight_map.values()):,} tensors)" for name in missing]
        raise _bad(
            f"{len(missing)} of {len(files)} shards are missing: {', '.join(parts)}",
            fix="Copy the missing files into the folder; the download or copy was not complete.",
        )
    shards = {name: read_header(folder / name) for name in files}
    found: dict[str, Stored] = {}
    for tensor, name in weight_map.items():
        if tensor not in shards[name]:
            raise _bad(f"{INDEX} says that {tensor!r} is in {name}, but it is not there")
        found[tensor] = shards[name][tensor]
    for name, tensors in shards.items():
        for tensor, stored in tensors.items():
            if tensor not in found:
                raise _bad(f"{name} holds {tensor!r}, which {INDEX} does not list")
            if found[tensor].file != stored.file and not same_values(found[tensor], stored):
                raise _bad(
                    f"tensor {tensor!r} is stored twice, differing: in {found[tensor].file.name} and in {name}",
                    fix=f"Remove the copy in {name}; the index assigns the tensor to {found[tensor].file.name}.",
                )
    return found


def same_values(one: Stored, other: Stored) -> bool:
    """True if two stored tensors are equal in type, shape and every bit."""
    import numpy as np

    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    first, second = one.bits(), other.bits()
    return all(
        np.array_equal(first[i : i + _CHUNK], second[i : i + _CHUNK]) for i in range(0, max(1, one.count), _CHUNK)
    )


def nonfinite_tensors(folder: Path) -> dict[str, int]:
    """Name -> number of NaN and infinite values, for each tensor that has any; attention masks are left out.

    Reads every floating-point weight once, in chunks, as bits: no copy of a tensor is made.
    """
    counts = {}
    for name, stored in stored_tensors(folder).items():
        if stored.is_float and not stored.is_mask and (count := nonfinite_values(stored)):
            counts[name] = count
    return counts


def nonfinite_values(stored: Stored) -> int:
    """How many values of a stored floating-point tensor are NaN or infinite."""
    bits = stored.bits()
    return sum(_nonfinite(bits[i : i + _CHUNK], stored.dtype) for i in range(0, stored.count, _CHUNK))


def _nonfinite(bits: npt.NDArray[Any], dtype: str) -> int:
    import numpy as np

    mask: np.unsignedinteger[Any] = bits.dtype.type(_E4M3_NAN if dtype == "F8_E4M3" else _EXPONENT[dtype])
    return int(np.count_nonzero((bits & mask) == mask))


def main_dtype(tensors: dict[str, Stored]) -> str:
    """The type that holds the most values, as torch names it ('float32')."""
    sizes: dict[str, int] = {}
    for stored in tensors.values():
        if not stored.is_buffer:
            sizes[stored.dtype] = sizes.get(stored.dtype, 0) + stored.count
    return DTYPES[max(sizes, key=lambda d: sizes[d])][2] if sizes else "float32"


def _no_weights(folder: Path) -> ExperimentError:
    names = sorted(p.name for p in folder.iterdir() if p.is_file())
    pickles = [n for n in names if n.endswith(PICKLES) and not n.startswith(("training_args", "optimizer"))]
    shards = [n for n in names if n.endswith(".safetensors")]
    save = "Save it with model.save_pretrained(folder, safe_serialization=True)."
    if "adapter_config.json" in names:
        return _bad("this folder holds an adapter, not a model", fix="Merge the adapter into its base model first.")
    if shards:
        return _bad(f"there is neither {SINGLE} nor {INDEX}; found {', '.join(shards[:5])}", fix=save)
    if pickles:
        return _bad(f"the weights exist only as {pickles[0]}, a format that can run code when it is loaded", fix=save)
    if gguf := [n for n in names if n.endswith(".gguf")]:
        return _bad(f"the weights exist only as {gguf[0]}", fix="Convert it to safetensors with transformers first.")
    return _bad(f"there are no weights: no {SINGLE} and no {INDEX}", fix=save)


def _bad(message: str, fix: str | None = None) -> ExperimentError:
    fix = fix or "Copy or download the file again and compare its checksum."
    return ExperimentError(FailureKind.BAD_MODEL, message, fix=fix, field="model")
