"""Parquet and Arrow files: batches of rows, a part of the file at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from ftcore.data.reading.columnar import json_error, name_twice, rows_of
from ftcore.data.reading.remote import RemoteFile, is_remote
from ftcore.data.reading.rows import BadRow, DataFile, Items, Row, bad_row
from ftcore.data.reading.sniff import first_bytes, refuse_pointer
from ftcore.spec.errors import DataError, Problem

GROUP = 1 << 32
"""A position in a parquet file is its row group times this, plus the row in the group."""
BATCH_ROWS = 256
BUFFER_BYTES = 1 << 20
"""Read ahead a column: without it a whole row group would be held."""
ARROW_FILE = b"ARROW1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChunk:
    """Rows of one batch."""

    first: int
    count: int
    read: int
    file: str
    position: int
    """Of the first row in its file."""
    batch: pa.RecordBatch

    def rows(self) -> list[Row | BadRow]:
        return batch_rows(self.batch, self.file, self.first, self.position)

    def __reduce__(self) -> tuple[Any, ...]:
        # pyarrow would pickle all the memory that a slice is a part of.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batch.schema) as writer:
            writer.write_batch(self.batch)
        return _unpickled, (self.first, self.count, self.read, self.file, self.position, sink.getvalue().to_pybytes())


def _unpickled(first: int, count: int, read: int, file: str, position: int, payload: bytes) -> BatchChunk:
    (batch,) = pa.ipc.open_stream(payload)
    return BatchChunk(first=first, count=count, read=read, file=file, position=position, batch=batch)


def batch_rows(batch: pa.RecordBatch, file: str, first: int, position: int) -> list[Row | BadRow]:
    """The rows of a batch, numbered from `first` if it isn't 0. A row whose JSON text is none is a bad row."""
    try:
        values = rows_of(batch)
    except (ValueError, RecursionError):
        return [row for index in range(len(batch)) for row in _single(batch.slice(index, 1), file, first + index if first else 0, position + index)]
    return [Row(number=first and first + index, file=file, line=None, value=value, nulls_left_out=nulls) for index, (value, nulls) in enumerate(values)]


def _single(batch: pa.RecordBatch, file: str, number: int, position: int) -> list[Row | BadRow]:
    try:
        ((value, nulls),) = rows_of(batch)
    except (ValueError, RecursionError) as error:
        what = json_error(error) if isinstance(error, ValueError) else f"not usable JSON: {error}"
        return [bad_row(file, number, None, position, what=what, fix="write valid JSON text into the column")]
    return [Row(number=number, file=file, line=None, value=value, nulls_left_out=nulls)]


def batches(file: DataFile, position: int = 0, rows: int = BATCH_ROWS) -> Iterator[tuple[int, pa.RecordBatch, int]]:
    """(position of its first row, batch, position after it), each batch of up to `rows` rows. Raises DataError for a damaged or cut file."""
    with _reported(file):
        if file.compression:
            raise pa.ArrowInvalid(f"a {file.kind} file inside {file.compression}: unpack it, it is compressed inside anyway")
        yield from (_parquet if file.kind == "parquet" else _arrow)(file, position, rows)


def batch_items(file: DataFile, position: int, end: int) -> Items:
    """The rows from `position` on, up to `end`, each with the position after it."""
    for start, batch, after in batches(file, position):
        found = batch_rows(batch, file.name, 0, start)
        for index, row in enumerate(found):
            if start + index >= end:
                return
            yield after if index == len(found) - 1 else start + index + 1, row


def group_starts(file: DataFile) -> list[int]:
    """Positions of a parquet file's row groups, and the one after the last."""
    with _reported(file):
        return [group * GROUP for group in range(_opened(file).metadata.num_row_groups + 1)]


def row_count(file: DataFile) -> int | None:
    """How many rows a parquet file holds, from its footer; None for another file."""
    if file.kind != "parquet":
        return None
    with _reported(file):
        return int(_opened(file).metadata.num_rows)


def _opened(file: DataFile) -> Any:
    from pyarrow import parquet

    opened = parquet.ParquetFile(RemoteFile(file) if is_remote(file) else file.path, pre_buffer=False, buffer_size=BUFFER_BYTES)
    _check_names(opened.schema_arrow, file)
    return opened


def _parquet(file: DataFile, position: int, rows: int) -> Iterator[tuple[int, pa.RecordBatch, int]]:
    opened = _opened(file)
    group, skipped = divmod(position, GROUP)
    for index in range(group, opened.metadata.num_row_groups):
        total, row = opened.metadata.row_group(index).num_rows, 0
        for batch in opened.iter_batches(batch_size=rows, row_groups=[index], use_threads=False):
            start, row = row, row + len(batch)
            if row <= skipped:
                continue
            cut = max(0, skipped - start)
            after = (index + 1) * GROUP if row == total else index * GROUP + row
            yield index * GROUP + start + cut, batch.slice(cut), after
        skipped = 0


def _arrow(file: DataFile, position: int, rows: int) -> Iterator[tuple[int, pa.RecordBatch, int]]:
    row = 0
    for batch in _record_batches(file):
        if row + len(batch) > position:
            begin = max(0, position - row)
            for start in range(begin, len(batch), rows):
                part = batch.slice(start, rows)
                yield row + start, part, row + start + len(part)
        row += len(batch)


def _record_batches(file: DataFile) -> Iterator[pa.RecordBatch]:
    if not file.size:
        return
    with pa.PythonFile(RemoteFile(file), mode="r") if is_remote(file) else pa.memory_map(str(file.path)) as source:
        if source.read(len(ARROW_FILE)) == ARROW_FILE:
            opened = pa.ipc.open_file(source)
            _check_names(opened.schema, file)
            yield from (opened.get_batch(index) for index in range(opened.num_record_batches))
            return
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        _check_names(stream.schema, file)
        yield from stream


def _check_names(schema: pa.Schema, file: DataFile) -> None:
    name = name_twice(schema)
    if name is not None:
        what = f"the name {name!r} stands twice among its columns, or in one of its structs"
        raise DataError([Problem(what=what, file=file.name, fix="write each name once")])


@contextmanager
def _reported(file: DataFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if file.path.is_file():
            refuse_pointer(file, first_bytes(file))
        kind = "a parquet file" if file.kind == "parquet" else "an Arrow file or stream"
        reason = " ".join(str(error).split())
        what = f"can't be read as {kind} ({file.size} bytes): {reason}"
        raise DataError([Problem(what=what, file=file.name, fix="was it cut off? download or copy the file again")]) from error
