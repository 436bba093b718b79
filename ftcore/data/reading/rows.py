"""What reading gives: rows as plain Python values, and rows that could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ftcore.spec.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One object of a file, with its own keys and values: no other row has a say in them."""

    number: int
    """From 1 over the whole set, in the order of its files; blank lines don't count. 0 where reading began in the middle of a file."""
    file: str = ""
    """Its file, as it is shown."""
    line: int | None
    """1-based line on which it begins; None where the file has no lines (parquet, Arrow), or where reading began in the middle."""
    value: dict[str, Any]
    nulls_left_out: int = 0
    """Keys of structs (parquet, Arrow) that the row is given without, since a null in a struct can't be told from a key that isn't there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that can't be read; the rows after it can."""

    number: int
    """As a row's: a bad row has a number of its own."""
    file: str = ""
    line: int | None
    problems: tuple[Problem, ...]
    """Each with its file, line and row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a data set."""

    path: Path
    """Where it is; for rows that are built in, their name."""
    name: str
    """What messages call it."""
    kind: str
    """jsonl, json, csv, parquet or arrow."""
    compression: str = ""
    """gzip, zstd, bz2, xz, or "" for none."""
    size: int
    """Bytes on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a data set, in the order in which their rows are numbered."""

    files: tuple[DataFile, ...]
    revision: str = ""
    """Commit of a data set of the hub; else ""."""


class Chunk(Protocol):
    """Some rows in a row, not parsed yet; can be pickled, to be parsed by another process."""

    @property
    def first(self) -> int:
        """Number of its first row."""
        ...

    @property
    def count(self) -> int:
        """Rows in it, bad ones among them."""
        ...

    @property
    def read(self) -> int:
        """Bytes of the set's files (as they are on disk) read up to here, for a progress bar."""
        ...

    def rows(self) -> list[Row | BadRow]:
        """Its rows in order, parsed now."""
        ...


Item = tuple[int, Row | BadRow]
"""(position after the row, the row)."""
Items = Iterator[Item]


def bad_row(file: str, number: int, line: int | None, position: int, *, what: str, fix: str) -> BadRow:
    """A bad row with one problem; one without a number is named by its position in the file."""
    where = f"row {number}" if number else f"position {position}"
    return BadRow(number=number, file=file, line=line, problems=(Problem(what=what, fix=fix, file=file, line=line, where=where),))
