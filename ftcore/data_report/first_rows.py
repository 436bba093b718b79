"""A set's rows by number, as the preparation numbers them."""

from __future__ import annotations

from collections.abc import Iterator

from ftcore.data.reading.reader import read_chunks
from ftcore.data.reading.rows import BadRow, Row, Source
from ftcore.spec.data_formats import LOOKED_AT
from ftcore.spec.errors import DataError
from ftcore.spec.events import emit


def first_rows(source: Source) -> list[Row]:
    """The first rows that can be read, as many as tell the format."""
    found: list[Row] = []
    for row in rows_of(source):
        if isinstance(row, Row):
            found.append(row)
        if len(found) >= LOOKED_AT:
            break
    return found


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
