"""CSV as people really have it: guessed delimiter, fields of any length, and a stray quote named by its line.

The standard reader limits fields to 131,072 characters and lets a lone quote swallow the rest of the file; here a
quoted field may be long, and one that does not end as it must is an error at the line where it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from experiments.records import ExperimentError, FailureKind

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
MAX_FIELD = 1 << 28  # characters of one field
_SAMPLE = 50  # records that the delimiter is guessed from

Lines = Iterator[tuple[int, str]]


class StrayQuoteError(Exception):
    """A quoted field that began on ``line`` does not end as it must."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why


@dataclass(frozen=True)
class CsvFile:
    """An opened CSV file: its columns and delimiter; :meth:`rows` streams the rest."""

    path: Path
    delimiter: str
    columns: tuple[str, ...]
    notes: tuple[str, ...]

    #: How rows are counted in messages.
    place = "line"

    @classmethod
    def open(cls, path: Path) -> CsvFile:
        """Read the header.

        Raises:
            ExperimentError: ``bad_dataset`` if there is none, or it names a column twice.
        """
        delimiter, how = _delimiter(path)
        first = next(_named(path, delimiter), None)
        if first is None:
            raise _bad(f"{path.name} is empty: no header and no rows", "Put the column names on the first line.")
        columns = tuple(name.strip() for name in first[1])
        twice = sorted({name for name in columns if name and columns.count(name) > 1})
        if twice:
            raise _bad(f"{path.name} has two columns named {twice[0]!r}", "Rename one of them.")
        return cls(path, delimiter, columns, (f"{path.name}: {DELIMITERS[delimiter]}-separated ({how})",))

    def rows(self, wanted: tuple[str, ...]) -> Iterator[tuple[int, tuple[str | None, ...]]]:
        """(line, cells of the wanted columns); a cell is None only if it is really empty.

        Raises:
            ExperimentError: ``bad_dataset`` naming the line of a stray quote or of a row with other columns.
        """
        places = [self.columns.index(name) for name in wanted]
        width = len(self.columns)
        records = _named(self.path, self.delimiter)
        next(records)
        for line, fields in records:
            if len(fields) != width:
                raise _bad(
                    f"{self.path.name}, line {line}: {len(fields)} fields, but the header has {width}",
                    f"Quote fields that hold a {DELIMITERS[self.delimiter]}.",
                )
            yield line, tuple(fields[place] or None for place in places)


def records(lines: Lines, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, fields) of each record (RFC 4180); blank lines are skipped.

    A quote opens a field only at its start; inside, it is written twice. Elsewhere it is a character like others.

    Raises:
        StrayQuoteError: for a quoted field that never ends, or that is followed by text instead of a delimiter.
    """
    for number, line in lines:
        body = line.rstrip("\r\n")
        if '"' not in body:
            if body:
                yield number, body.split(delimiter)
            continue
        began = number
        fields: list[str] = []
        position = 0
        while True:
            if body.startswith('"', position):
                opened = number
                pieces: list[str] = []
                size = 0
                position += 1
                while True:
                    close = body.find('"', position)
                    if close < 0:
                        pieces.append(line[position:])
                        size += len(pieces[-1])
                        following = next(lines, None)
                        if following is None or size > MAX_FIELD:
                            swallowed = number - opened
                            raise StrayQuoteError(
                                opened, f"a quote opens here and is never closed (it would swallow {swallowed:,} lines)"
                            )
                        number, line = following
                        body, position = line.rstrip("\r\n"), 0
                    elif body.startswith('"', close + 1):
                        pieces.append(body[position : close + 1])
                        position = close + 2
                    else:
                        pieces.append(body[position:close])
                        position = close + 1
                        break
                fields.append("".join(pieces))
                rest = body[position:].lstrip(" ")
                if not rest:
                    break
                if not rest.startswith(delimiter):
                    where = f", closed on line {number}" if number != opened else ""
                    raise StrayQuoteError(
                        opened, f"a quote opens here{where} and is followed by {rest[:20]!r} instead of a delimiter"
                    )
                position = len(body) - len(rest) + 1
            else:
                end = body.find(delimiter, position)
                if end < 0:
                    fields.append(body[position:])
                    break
                fields.append(body[position:end])
                position = end + 1
        yield began, fields


def text_lines(path: Path) -> Lines:
    """(number, line with its ending) of a UTF-8 or UTF-16 text file, a byte-order mark removed.

    Raises:
        ExperimentError: ``bad_dataset`` naming the line that is not UTF-8.
    """
    with path.open("rb") as handle:
        mark = handle.read(4)
    if mark.startswith((b"\xff\xfe", b"\xfe\xff")):
        with path.open(encoding="utf-16", newline="") as text:
            yield from enumerate(text, 1)
        return
    with path.open("rb") as handle:
        for number, raw in enumerate(handle, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _bad(
                    f"{path.name}, line {number} is not UTF-8 text (byte {raw[error.start]:#04x})",
                    "Save the file as UTF-8.",
                ) from None
            yield number, line


def _named(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    try:
        yield from records(text_lines(path), delimiter)
    except StrayQuoteError as error:
        raise _bad(
            f"{path.name}, line {error.line}: {error.why}",
            'Close the quote, or write it twice ("") and quote the whole field if it belongs to the text.',
        ) from None


def _delimiter(path: Path) -> tuple[str, str]:
    """The delimiter and how it was found: the one by which the first records have equally many fields, and most."""
    if path.suffix == ".tsv":
        return "\t", "by the file's ending"
    best: tuple[bool, float, int] = (False, -1.0, 0)
    chosen = ","
    for delimiter in DELIMITERS:
        try:
            sample = [fields for _, fields in islice(records(text_lines(path), delimiter), _SAMPLE)]
        except StrayQuoteError:
            continue
        if not sample:
            break
        width = len(sample[0])
        share = sum(len(fields) == width for fields in sample) / len(sample)
        rank = (width > 1 and share == 1.0, share if width > 1 else 0.0, width)
        if rank > best:
            best, chosen = rank, delimiter
    return chosen, "guessed" if best[2] > 1 else "one column"


def _bad(message: str, fix: str) -> ExperimentError:
    return ExperimentError(FailureKind.BAD_DATASET, message, fix=fix, field="dataset.path")
