"""Which files hold a split: by the names that people and hubs give them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from experiments.catalog import nearest
from experiments.parts.tabular import ENDINGS
from experiments.records import ExperimentError, FailureKind

_SAME = {"validation": ("validation", "valid", "val", "dev"), "test": ("test", "eval"), "train": ("train", "training")}
_SHARD = r"(?:[-_.]\d+(?:-of-\d+)?)?"


def split_files(names: Iterable[str], split: str, where: str, config: str | None = None) -> list[str]:
    """The files (relative, with slashes) of ``split``, in order; a lone file that names no split is all of it.

    ``train.csv``, ``data/train-00000-of-00002.parquet``, ``default/train/0000.parquet`` are known ways. ``config``
    restricts them to one folder (or, on hubs, one configuration).

    Raises:
        ExperimentError: ``bad_dataset`` if none or several configurations have the split; the nearest is offered.
    """
    data = sorted(n for n in names if PurePosixPath(n).suffix.casefold() in ENDINGS and not _is_card(n))
    if config is not None:
        data = [n for n in data if config in PurePosixPath(n).parts[:-1] or PurePosixPath(n).name.startswith(config)]
    if not data:
        what = f" of configuration {config!r}" if config else ""
        raise _bad(f"{where} holds no data files{what} ({', '.join(ENDINGS)})", "dataset")
    by_split: dict[str, list[str]] = {}
    for name in data:
        if (found := _split_of(name)) is not None:
            by_split.setdefault(found, []).append(name)
    wanted = next((name for name, words in _SAME.items() if split in words), split)
    exact = by_split.get(wanted, [])
    if not exact and not by_split and len(data) == 1:
        return data
    if not exact:
        exact = [name for name in data if PurePosixPath(name).stem == split or split in PurePosixPath(name).parts[:-1]]
    if not exact:
        known = sorted(by_split) or [PurePosixPath(name).stem for name in data[:20]]
        close = nearest(split, known)
        hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(known)}"
        raise _bad(f"{where} has no split {split!r}; {hint}", "dataset.split")
    folders = sorted({str(PurePosixPath(name).parent) for name in exact})
    if len(folders) > 1:
        raise _bad(
            f"{where} has several configurations with split {split!r}: {', '.join(folders[:10])}", "dataset.config"
        )
    endings = sorted({PurePosixPath(name).suffix for name in exact})
    return [name for name in exact if name.endswith(endings[-1])]  # the same rows in two formats: parquet, else jsonl


def _split_of(name: str) -> str | None:
    path = PurePosixPath(name)
    for canonical, words in _SAME.items():
        for word in words:
            if re.fullmatch(rf"(?:.*[-_.])?{word}{_SHARD}", path.stem, re.IGNORECASE) or path.parent.name == word:
                return canonical
    return None


def _is_card(name: str) -> bool:
    """JSON files that describe a dataset instead of holding it."""
    return PurePosixPath(name).name in {"dataset_infos.json", "dataset_info.json", "state.json", "package.json"}


def _bad(message: str, field: str) -> ExperimentError:
    return ExperimentError(FailureKind.BAD_DATASET, message, fix="Name one that is there.", field=field)
