"""The rows of a data set: in chunks over all its files, or from a position in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ftcore.data.reading.batches import BatchChunk, batch_items, batches, group_starts, row_count
from ftcore.data.reading.columnar import nulls_in
from ftcore.data.reading.csv_rows import csv_items
from ftcore.data.reading.json_array import array_items
from ftcore.data.reading.json_layout import json_layout
from ftcore.data.reading.lines import line_chunks, line_items, line_start
from ftcore.data.reading.rows import BadRow, Chunk, DataFile, Item, Items, Row, Source
from ftcore.data.reading.sniff import sniffed
from ftcore.data.reading.streams import ByteStream
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.events import emit

CHUNK_ROWS = 256
OPEN_END = 1 << 62
"""The end of a part that goes on to the end of its file."""
COLUMNAR = ("parquet", "arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedChunk:
    """Rows that had to be parsed to find out where they end (CSV, a JSON array)."""

    first: int
    count: int
    read: int
    parsed: list[Row | BadRow]

    def rows(self) -> list[Row | BadRow]:
        return self.parsed


def read_chunks(source: Source, rows: int = CHUNK_ROWS) -> Iterator[Chunk]:
    """All rows of a data set in order, `rows` at a time; a chunk ends with its file.

    Raises DataError when a file can't be opened, is cut or damaged so that its rows can't be told apart, and when there are no rows.
    Empty files among others, and nulls left out of structs, are told in notes.
    """
    first, read, nulls = 1, 0, 0
    for file in source.files:
        before = first
        for chunk in _file_chunks(file, first, rows, read):
            first += chunk.count
            nulls += nulls_in(chunk.batch) if isinstance(chunk, BatchChunk) else 0
            yield chunk
        read += file.size
        if first == before and len(source.files) > 1:
            emit("note", text=f"{file.name} has no rows")
    if nulls:
        names = source.files[0].name if len(source.files) == 1 else f"{len(source.files)} files"
        emit("note", text=f"{names}: {nulls} nulls inside structs are left out: there they can't be told from keys that a row doesn't have")
    if first == 1:
        names = ", ".join(file.name for file in source.files[:3])
        one = "no rows: the file is empty" if source.files[0].kind != "csv" else "no rows: the file is empty, or has only a header"
        what = one if len(source.files) == 1 else f"no rows: all {len(source.files)} files are empty"
        raise DataError([Problem(what=what, file=names, fix="name a file with at least one row")])


def read_at(file: DataFile, position: int = 0, end: int = OPEN_END) -> Iterator[Item]:
    """(position after the row, row) of the rows of one file that begin at or after `position` and before `end`.

    A position is 0, or what this gave or `parts` did: a byte offset of the text (JSONL, CSV, a JSON array), a row group * 2**32 + a row
    (parquet), or a row's index (Arrow). The rows have no number and no line. A compressed file is unpacked from its start to get there.
    Raises DataError as `read_chunks` does; a file without rows just gives none.
    """
    if file.kind in COLUMNAR:
        return batch_items(file, position, end)
    return _text_items(sniffed(file), position, end)


def read_one(file: DataFile, position: int) -> Row | BadRow:
    """The row at `position` (see `read_at`). Raises DataError when there is none."""
    for _, row in read_at(file, position):
        return row
    raise DataError([Problem(what=f"no row at position {position}", file=file.name, fix="the file has changed: name the one that was read before")])


def parts(file: DataFile, count: int) -> list[tuple[int, int]]:
    """Up to `count` (start, end) for `read_at` that together give each row once: cuts at lines, or at row groups of a parquet file.

    One part when the file can't be cut: compressed, CSV, a JSON array, Arrow.
    """
    if file.kind == "parquet":
        starts = group_starts(file)
        cuts = sorted({starts[index * (len(starts) - 1) // count] for index in range(count)})
    elif file.kind in ("jsonl", "json") and not (file := sniffed(file)).compression and json_layout(file) == "lines":
        cuts = sorted({line_start(file, index * file.size // count) for index in range(count)} - {file.size}) or [0]
    else:
        cuts = [0]
    return list(zip(cuts, [*cuts[1:], OPEN_END], strict=True))


def _file_chunks(file: DataFile, first: int, rows: int, read: int) -> Iterator[Chunk]:
    if file.kind in COLUMNAR:
        yield from _batch_chunks(file, first, rows, read)
        return
    file = sniffed(file)
    if file.kind != "csv" and json_layout(file) == "lines":
        with ByteStream(file) as stream:
            yield from line_chunks(stream, first, rows, read)
        return
    items = csv_items(file, first=first) if file.kind == "csv" else array_items(file, first=first)
    while held := list(islice(items, rows)):
        parsed = [row for _, row in held]
        yield ParsedChunk(first=first, count=len(parsed), read=read + min(held[-1][0], file.size), parsed=parsed)
        first += len(parsed)


def _batch_chunks(file: DataFile, first: int, rows: int, read: int) -> Iterator[Chunk]:
    total, done = None if file.compression else row_count(file), 0
    size_a_row = file.size / total if total else 0.0
    for position, batch, _ in batches(file, rows=rows):
        done += len(batch)
        # An Arrow file says nowhere how many rows it has; its bytes are the rows'.
        size_a_row = size_a_row if total else max(size_a_row, batch.nbytes / len(batch))
        read_here = min(file.size, round(size_a_row * done))
        yield BatchChunk(first=first, count=len(batch), read=read + read_here, file=file.name, position=position, batch=batch)
        first += len(batch)


def _text_items(file: DataFile, position: int, end: int) -> Items:
    if file.kind == "csv":
        return csv_items(file, position, end)
    return line_items(file, position, end) if json_layout(file) == "lines" else array_items(file, position)
