"""Snapshots of hub repositories, pinned to the commit that a revision stood for, kept whole in the cache.

``HF_ENDPOINT`` and ``HF_TOKEN`` work as everywhere. Only files that the caller chose are fetched, so no pickle and no
code ever reaches the disk.
"""

from __future__ import annotations

import glob
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.parts.cache import Cache
from experiments.protocols import Host
from experiments.records import ExperimentError, FailureKind, digest

RepoKind = Literal["model", "dataset"]
#: Chooses the files to fetch from {name: bytes or None}; raises if the repository can't serve.
Choose = Callable[[dict[str, int | None]], list[str]]
TIMEOUT_S = 20.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Snapshot:
    """A repository at one commit, complete on this disk."""

    folder: Path
    commit: str


def cached_snapshot(host: Host, kind: RepoKind, repo: str, revision: str, part: str = "") -> Snapshot | None:
    """What an earlier fetch of this revision brought, or None; never contacts the hub."""
    reference = _reference(host, kind, repo, revision, part)
    if not reference.is_file():
        return None
    said = json.loads(reference.read_text())
    folder = host.cache / "hub" / str(said["entry"])
    return Snapshot(folder, str(said["commit"])) if folder.is_dir() else None


def fetch_snapshot(host: Host, kind: RepoKind, repo: str, revision: str, part: str, choose: Choose) -> Snapshot:
    """The chosen files of ``repo`` at the commit that ``revision`` stands for now; ``part`` names the choice.

    A full commit hash that was fetched before needs no network. A hub that can't be reached is bridged by what an
    earlier fetch of the same revision brought, which is said.

    Raises:
        ExperimentError: ``download`` if the hub can't be reached or refuses, ``bad_model`` or ``bad_dataset`` if
            there is no such repository or revision, ``disk_full``.
    """
    kept = cached_snapshot(host, kind, repo, revision, part)
    if kept and (host.offline or _said_offline() or _COMMIT.fullmatch(revision)):
        return kept
    if host.offline or _said_offline():
        raise ExperimentError(
            FailureKind.DOWNLOAD,
            f"{repo} at {revision!r} is not in the cache, and this host is set offline",
            fix="Fetch it once with a connection, or give a local folder with 'source: path'.",
            field=kind,
        )
    try:
        commit, files = _listing(kind, repo, revision)
    except ExperimentError as error:
        if kept and error.failure.kind is FailureKind.DOWNLOAD:
            host.tell(f"the hub can't be reached; using {repo} as fetched before, at commit {kept.commit[:12]}", None)
            return kept
        raise
    chosen = sorted(choose(files))
    size = sum(files[name] or 0 for name in chosen)
    key: dict[str, object] = {"endpoint": _endpoint(), "kind": kind, "repo": repo, "commit": commit, "files": chosen}
    folder, _ = Cache(host.cache).get("hub", key, lambda made: _download(host, kind, repo, commit, chosen, size, made))
    _remember(_reference(host, kind, repo, revision, part), folder, commit)
    return Snapshot(folder, commit)


def _listing(kind: RepoKind, repo: str, revision: str) -> tuple[str, dict[str, int | None]]:
    from huggingface_hub import HfApi

    def ask() -> Any:
        return HfApi(endpoint=_endpoint()).repo_info(
            repo, repo_type=kind, revision=revision, timeout=TIMEOUT_S, files_metadata=True
        )

    info = _explained(ask, kind, repo, revision)
    return str(info.sha), {file.rfilename: file.size for file in info.siblings or ()}


def _download(host: Host, kind: RepoKind, repo: str, commit: str, chosen: list[str], size: int, target: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    free = shutil.disk_usage(target).free
    if size > free:
        raise ExperimentError(
            FailureKind.DISK_FULL,
            f"{repo} needs {size / 2**20:,.0f} MiB, but the disk that holds {host.cache} has {free / 2**20:,.0f} MiB",
            fix="Free some space or set STEELYARD_CACHE to a larger disk.",
        )
    message = f"downloading {repo} ({size / 2**20:,.1f} MiB, {len(chosen)} files)"
    host.tell(message, 0.0)

    class Told(tqdm):
        """Tells the share of files that are done instead of drawing a bar."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO()})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> Any:
            shown = super().update(n)
            if self.total and self.unit == "it":
                host.tell(message, min(1.0, self.n / self.total))
            return shown

    def bring() -> str:
        return str(
            snapshot_download(
                repo,
                repo_type=kind,
                revision=commit,
                cache_dir=host.cache / "hub-files",
                endpoint=_endpoint(),
                allow_patterns=[glob.escape(name) for name in chosen],
                etag_timeout=TIMEOUT_S,
                max_workers=4,
                tqdm_class=Told,
            )
        )

    brought = Path(_explained(bring, kind, repo, commit))
    for name in chosen:
        if not (brought / name).is_file():
            raise ExperimentError(
                FailureKind.DOWNLOAD, f"the hub did not deliver {name} of {repo}", fix="Try again.", field=kind
            )
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        _link((brought / name).resolve(), target / name)


def _explained(ask: Callable[[], Any], kind: RepoKind, repo: str, revision: str) -> Any:
    """Run ``ask``; every way in which a hub can refuse becomes one sentence with a fix."""
    import requests
    from huggingface_hub import errors

    absent = FailureKind.BAD_MODEL if kind == "model" else FailureKind.BAD_DATASET

    def failure(what: FailureKind, message: str, fix: str) -> ExperimentError:
        return ExperimentError(what, message, fix=fix, field=f"{kind}.name")

    try:
        return ask()
    except errors.HFValidationError as error:
        raise failure(absent, f"{repo!r} is not a repository name", "Write it as 'organisation/name'.") from error
    except errors.GatedRepoError as error:
        raise failure(
            FailureKind.DOWNLOAD,
            f"{repo} is gated: its owners must let you in",
            "Accept its terms on the hub and set HF_TOKEN on the workers.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise failure(absent, f"{repo} has no revision {revision!r}", "Give a branch, tag or commit of it.") from error
    except errors.RepositoryNotFoundError as error:
        raise failure(
            absent,
            f"there is no {kind} {repo!r} on the hub, or it is private",
            "Check the spelling; for a private one set HF_TOKEN on the workers.",
        ) from error
    except errors.DisabledRepoError as error:
        raise failure(FailureKind.DOWNLOAD, f"{repo} is disabled on the hub", "Choose another one.") from error
    except (requests.Timeout, TimeoutError) as error:
        raise failure(FailureKind.DOWNLOAD, f"the hub did not answer in time for {repo}", "Try again later.") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "?"
        raise failure(FailureKind.DOWNLOAD, f"the hub answered {status} for {repo}", "Try again later.") from error
    except (requests.RequestException, ConnectionError, errors.LocalEntryNotFoundError) as error:
        raise failure(
            FailureKind.DOWNLOAD,
            f"the hub can't be reached for {repo} ({type(error).__name__})",
            "Check the network and HF_ENDPOINT, or give a local folder with 'source: path'.",
        ) from error


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _said_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}


def _reference(host: Host, kind: RepoKind, repo: str, revision: str, part: str) -> Path:
    return host.cache / "hub" / "refs" / f"{digest([_endpoint(), kind, repo, revision, part])[:32]}.json"


def _remember(reference: Path, folder: Path, commit: str) -> None:
    reference.parent.mkdir(parents=True, exist_ok=True)
    scratch = reference.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps({"entry": folder.name, "commit": commit}))
    scratch.replace(reference)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
