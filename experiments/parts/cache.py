"""Content-addressed cache on disk: each entry is made once, whole or not at all.

An entry is a folder named by the hash of everything that determines it. It is made in a temporary sibling and
renamed into place, so a killed process never leaves half an entry; a lock file keeps two makers of the same entry
apart (the second one waits and then reuses it).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from experiments.records import ExperimentError, FailureKind, digest

#: Raise it when the meaning of cached entries changes.
CACHE_VERSION = 1


def default_cache() -> Path:
    """``STEELYARD_CACHE``, else ``steelyard`` below the user's cache folder."""
    if configured := os.environ.get("STEELYARD_CACHE"):
        return Path(configured)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "steelyard"


class Cache:
    """The cache below one folder, by kind (``models``, ``datasets``, ``packs``, ``artifacts``, ...)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, kind: str, key: Mapping[str, object]) -> Path:
        """Where the entry of ``key`` (JSON data) lies, made or not."""
        return self.root / kind / digest({"cache_version": CACHE_VERSION, **key})[:32]

    def has(self, kind: str, key: Mapping[str, object]) -> bool:
        """True if the entry was made."""
        return self.path(kind, key).is_dir()

    def get(self, kind: str, key: Mapping[str, object], make: Callable[[Path], None]) -> tuple[Path, bool]:
        """The entry's folder and whether it was reused; ``make(folder)`` fills a new one.

        Raises:
            ExperimentError: ``disk_full`` if the disk has no room; whatever ``make`` raises.
        """
        path = self.path(kind, key)
        if path.is_dir():
            os.utime(path)
            return path, True
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            if path.is_dir():
                return path, True
            # We hold the entry's lock, so whoever left such a folder was killed.
            for left in path.parent.glob(f".{path.name}.*"):
                shutil.rmtree(left, ignore_errors=True)
            scratch = path.with_name(f".{path.name}.{os.getpid()}")
            scratch.mkdir()
            try:
                make(scratch)
                os.rename(scratch, path)
            except OSError as error:
                if error.errno == 28:
                    raise ExperimentError(
                        FailureKind.DISK_FULL,
                        f"no space left on the disk that holds {self.root}",
                        fix="Free some space or set STEELYARD_CACHE to a larger disk.",
                    ) from error
                raise
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return path, False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made if absent); it is released even if the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def remembered_sha256(cache: Path, path: Path) -> str:
    """SHA-256 of a large file, remembered in ``cache`` by path, size, inode and time of change."""
    stat = path.stat()
    key = {"path": str(path.resolve()), "size": stat.st_size, "inode": stat.st_ino, "changed": stat.st_mtime_ns}
    note = cache / "hashes" / digest(key)
    if note.exists():
        return note.read_text()
    found = sha256_file(path)
    note.parent.mkdir(parents=True, exist_ok=True)
    scratch = note.with_name(f".{note.name}.{os.getpid()}")
    scratch.write_text(found)
    os.replace(scratch, note)
    return found


def sha256_folder(folder: Path, names: list[str] | None = None) -> str:
    """SHA-256 over the relative names and contents of all files below ``folder`` (or of ``names`` only)."""
    total = hashlib.sha256()
    files = [folder / name for name in names] if names is not None else [p for p in folder.rglob("*") if p.is_file()]
    for path in sorted(files):
        total.update(f"{path.relative_to(folder).as_posix()}\0{sha256_file(path)}\n".encode())
    return total.hexdigest()


def link_folder(source: Path, target: Path) -> None:
    """Fill ``target`` with the files of ``source``: hard links where the disk can, copies elsewhere.

    Whoever changes such a file must write a new one in its place.
    """
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, to)
        except OSError:
            shutil.copyfile(path, to)


def weight_files(folder: Path) -> list[str]:
    """Relative names of the files that hold weights: safetensors, ONNX and its external data."""
    suffixes = {".safetensors", ".onnx", ".onnx_data", ".data"}
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.suffix in suffixes)
