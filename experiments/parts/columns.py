"""Which column plays which role: as the user mapped it, else by its name, always said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.catalog import nearest
from experiments.protocols import Task
from experiments.records import ExperimentError, FailureKind

Role = Literal["text", "pair", "label", "score", "image"]

_NAMES: dict[Role, tuple[str, ...]] = {
    "text": (
        *("text", "sentence", "review", "content", "sentence1", "premise", "question", "prompt", "document", "body"),
        *("comment", "tweet", "message", "utterance", "input", "title", "text1", "text_a", "query"),
    ),
    "label": ("label", "labels", "class", "category", "sentiment", "target", "intent", "y", "coarse_label"),
    "score": ("score", "similarity", "similarity_score", "relatedness_score"),
    "image": ("image", "img", "pixels", "pixel_values"),
    "pair": (),
}
_PAIRS = {"sentence1": "sentence2", "premise": "hypothesis", "text1": "text2", "text_a": "text_b"}
_NEEDS: dict[Task, tuple[tuple[Role, ...], tuple[Role, ...]]] = {
    "text-classification": (("text", "label"), ("pair",)),
    "text-generation": (("text",), ()),
    "feature-extraction": (("text",), ("pair", "score", "label")),
    "image-classification": (("image", "label"), ()),
}


@dataclass(frozen=True)
class Roles:
    """Role -> column, and one note that says what was guessed."""

    columns: dict[Role, str]
    notes: tuple[str, ...]


def assign_roles(columns: Sequence[str], given: Mapping[Role, str], task: Task, file: str) -> Roles:
    """The columns that ``task`` needs, and those that it can use.

    Raises:
        ExperimentError: ``bad_dataset`` if a mapped column does not exist (the nearest is offered) or a needed one
            can't be guessed.
    """
    needed, useful = _NEEDS[task]
    chosen: dict[Role, str] = {}
    guessed: list[str] = []
    for role in (*needed, *useful):
        if role in given:
            chosen[role] = _existing(columns, given[role], role, file)
        elif (name := _guess(columns, role, chosen, given)) is not None:
            chosen[role] = name
            guessed.append(f"{role} = {name!r}")
        elif role in needed:
            raise _missing(columns, role, task, file)
    notes = (f"{file}: columns guessed by name: {', '.join(guessed)}",) if guessed else ()
    return Roles(chosen, notes)


def _existing(columns: Sequence[str], name: str, role: Role, file: str) -> str:
    if name in columns:
        return name
    close = nearest(name, columns)
    hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(columns[:20])}"
    raise ExperimentError(
        FailureKind.BAD_DATASET,
        f"{file} has no column {name!r}; {hint}",
        fix="Correct the name in the mapping of columns.",
        field=f"dataset.columns.{role}",
    )


def _guess(columns: Sequence[str], role: Role, chosen: Mapping[Role, str], given: Mapping[Role, str]) -> str | None:
    by_name = {name.strip().casefold(): name for name in columns}
    if role == "pair":
        return by_name.get(_PAIRS.get(chosen.get("text", "").casefold(), "")) if "text" not in given else None
    for name in _NAMES[role]:
        if name in by_name and by_name[name] not in given.values():
            return by_name[name]
    if role == "text" and len(columns) == 1:
        return columns[0]
    return None


def _missing(columns: Sequence[str], role: Role, task: Task, file: str) -> ExperimentError:
    close = next((c for n in _NAMES[role] if (c := nearest(n, columns)) is not None), None)
    hint = f"; the nearest is {close!r}" if close else ""
    return ExperimentError(
        FailureKind.BAD_DATASET,
        f"{file} has no column that looks like the {role} that {task} needs{hint}; "
        f"there are: {', '.join(map(repr, columns[:20]))}",
        fix=f"Name it with dataset.columns.{role} (the first line of a CSV file must hold the column names).",
        field=f"dataset.columns.{role}",
    )
