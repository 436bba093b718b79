"""A set's files and its rows by number, as the preparation numbers them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ftcore.data.formats.decide import decide_format
from ftcore.data.reading.find import find_files
from ftcore.data.reading.reader import read_chunks
from ftcore.data.reading.rows import BadRow, Row, Source
from ftcore.data.reading.splits import Purpose
from ftcore.spec.data_formats import LOOKED_AT
from ftcore.spec.errors import DataError
from ftcore.spec.events import emit
from ftcore.spec.sections import DataSet


def find_source(key: str, dataset: DataSet, purpose: Purpose, cache_dir: Path) -> Source:
    """The files of the set that the spec calls `key`; `purpose`: train or eval. Raises DataError when there are none."""
    return find_files(dataset, key, purpose=purpose, cache_dir=cache_dir)


def first_rows(source: Source) -> list[Row]:
    """The first rows that can be read, as many as tell the format."""
    found: list[Row] = []
    for row in rows_of(source):
        if isinstance(row, Row):
            found.append(row)
        if len(found) >= LOOKED_AT:
            break
    return found


def format_of(key: str, dataset: DataSet, first: list[Row]) -> tuple[DataSet, str]:
    """The set with its format decided, and how it was found. Raises DataError when no format fits."""
    return decide_format(dataset, first, key)


def rows_of(source: Source) -> Iterator[Row | BadRow]:
    """Every row, good or bad, in order."""
    for chunk in read_chunks(source):
        yield from chunk.rows()


def row_of(source: Source, number: int, name: str) -> Row | BadRow:
    """The row `number`, from 1; rows before it are counted, not parsed. Raises DataError when the set has fewer."""
    count = 0
    for chunk in read_chunks(source):
        count = chunk.first + chunk.count - 1
        if chunk.first <= number <= count:
            return chunk.rows()[number - chunk.first]
        emit("progress", stage="report", done=count, total=number, text=f"looking for row {number:,}")
    raise DataError(f"there is no row {number:,}: the set {name} has {count:,} rows", where="--row", fix=f"give a number from 1 to {count}")
