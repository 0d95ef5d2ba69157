"""A zip archive made while it is sent: files stored as they are, in pieces, whatever their size."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

CHUNK = 1 << 20

#: Below this nothing in the archive needs the longer records of zip64 (``zipfile`` begins 5 % below 2 GiB).
_PLAIN = int(zipfile.ZIP64_LIMIT / 1.06)
_LOCAL, _DESCRIPTOR, _CENTRAL, _END = 30, 16, 46, 22


@dataclass(frozen=True)
class Entry:
    """One file of the archive: its name in it, its bytes, and how to open it."""

    name: str
    size: int
    open: Callable[[], IO[Any]]


def length(entries: Sequence[Entry]) -> int | None:
    """Bytes of the whole archive, known before it is made; None where it needs zip64."""
    names = [len(entry.name.encode()) for entry in entries]
    total = sum(
        entry.size + _LOCAL + _DESCRIPTOR + _CENTRAL + 2 * name for entry, name in zip(entries, names, strict=True)
    )
    return total + _END if total < _PLAIN and len(entries) < 0xFFFF else None


def stream(entries: Sequence[Entry]) -> Iterator[bytes]:
    """The archive's bytes; never more than about one piece of one file is in memory.

    Raises:
        OSError: a file has other bytes than its entry says; the reader sees a broken transfer, not a broken file.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for entry in entries:
            info = zipfile.ZipInfo(entry.name, date_time=(1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            info.file_size = entry.size
            sent = 0
            with entry.open() as source, archive.open(info, "w") as target:
                while piece := source.read(CHUNK):
                    sent += len(piece)
                    if sent > entry.size:
                        break
                    target.write(piece)
                    yield sink.taken()
            if sent != entry.size:
                raise OSError(f"{entry.name} is not the {entry.size:,} bytes that it should be")
            yield sink.taken()
    yield sink.taken()


class _Sink:
    """Where ``zipfile`` writes: it can neither seek nor tell, so sizes follow each file."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is kept back."""

    def taken(self) -> bytes:
        """What was written since the last call."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data
