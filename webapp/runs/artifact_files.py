"""Where the files of artifacts lie in the storage: below the hash of them all, so that equal ones lie there once."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import IO, Any

from django.core.files.storage import default_storage

from webapp.core.linking_storage import LocalFile


class UnsafeName(ValueError):
    """A name that would leave the artifact's folder."""


def address(sha256: str, name: str) -> str:
    """The name in the storage of one file of an artifact.

    Raises:
        UnsafeName: the hash is none, or the name is absolute, climbs up, or is no plain relative path.
    """
    parts = PurePosixPath(name).parts
    plain = parts and "/".join(parts) == name and not {"..", ".", "/"} & set(parts) and "\\" not in name
    if not plain or "\0" in name or len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise UnsafeName(f"{name!r} of {sha256[:64]!r} is no file of an artifact")
    return f"{sha256[:2]}/{sha256}/{name}"


def put(sha256: str, files: dict[str, int], folder: Path) -> None:
    """Store all ``files`` (name -> bytes) of ``folder``; those that are there already are left alone.

    Raises:
        UnsafeName: as :func:`address`, or a file is a link to somewhere else.
        OSError: a file is missing, has another size by now, or the storage can't take it.
    """
    root = folder.resolve()
    for name, size in files.items():
        to = address(sha256, name)
        if default_storage.exists(to) and default_storage.size(to) == size:
            continue
        source = folder / name
        if source.is_symlink() or not source.resolve().is_relative_to(root):
            raise UnsafeName(f"{name!r} is not a file of the artifact's own folder")
        if source.stat().st_size != size:
            raise OSError(f"{name} has {source.stat().st_size:,} bytes, the report says {size:,}")
        with LocalFile(source) as content:
            default_storage.save(to, content)


def present(sha256: str, files: dict[str, int]) -> bool:
    """True if every file is in the storage."""
    return all(default_storage.exists(address(sha256, name)) for name in files)


def read(sha256: str, name: str) -> IO[Any]:
    """One file, opened for reading in pieces."""
    return default_storage.open(address(sha256, name), "rb")
