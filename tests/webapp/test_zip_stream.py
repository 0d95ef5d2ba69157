"""The archive that is made while it is sent."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from functools import partial
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.core.zip_stream import CHUNK, Entry, length, stream


def entry(name: str, data: bytes) -> Entry:
    return Entry(name, len(data), partial(io.BytesIO, data))


@given(st.dictionaries(st.text("aé日/.-_ ", min_size=1, max_size=30), st.binary(max_size=200), max_size=6))
def test_the_length_told_beforehand_is_the_length(files: dict[str, bytes]) -> None:
    entries = [entry(name, data) for name, data in files.items()]
    made = b"".join(stream(entries))
    assert length(entries) == len(made)
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        assert archive.testzip() is None
        assert [archive.read(info) for info in archive.infolist()] == list(files.values())


class Zeros(io.RawIOBase):
    """Zeros that lie nowhere."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return bytes(size)


def zeros(size: int) -> IO[Any]:
    return Zeros(size)  # type: ignore[return-value]


def test_a_large_file_takes_no_memory() -> None:
    size = 96 << 20
    tracemalloc.start()
    sent = sum(map(len, stream([Entry("large", size, partial(zeros, size))])))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sent > size
    assert peak < 8 * CHUNK


def test_beyond_two_gibibytes_no_length_is_told() -> None:
    assert length([Entry("large", 3 << 30, partial(zeros, 3 << 30))]) is None


@pytest.mark.parametrize("size", [3, 7])
def test_a_file_of_another_size_breaks_the_transfer(size: int) -> None:
    with pytest.raises(OSError, match="is not the"):
        list(stream([Entry("a", size, partial(io.BytesIO, b"12345"))]))
