"""JSON Lines: chunks of lines, parsed one object a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ftcore.data.reading.json_text import BadTextError, object_of
from ftcore.data.reading.rows import BadRow, DataFile, Items, Row, bad_row
from ftcore.data.reading.streams import BOM, ByteStream, line_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChunk:
    """Lines of one file."""

    first: int
    count: int
    read: int
    file: str
    line: int
    """1-based number of the first line."""
    offset: int
    """Of the first line's first byte."""
    measured_in: str
    lines: list[bytes]

    def rows(self) -> list[Row | BadRow]:
        found: list[Row | BadRow] = []
        number, line, offset = self.first, self.line, self.offset
        for raw in self.lines:
            if not is_blank(raw):
                found.append(row_of(raw, self.file, number, line, offset, self.measured_in))
                number += 1
            line += 1
            offset += len(raw) + 1
        return found


def is_blank(raw: bytes) -> bool:
    """Whether a line holds nothing but white space."""
    return not raw or raw.isspace()


def row_of(raw: bytes, file: str, number: int, line: int | None, offset: int, measured_in: str) -> Row | BadRow:
    """The row that a line holds."""
    try:
        return Row(number=number, file=file, line=line, value=object_of(raw, offset, measured_in))
    except BadTextError as error:
        return bad_row(file, number, line, offset, what=error.what, fix=error.fix)


def line_chunks(stream: ByteStream, first: int, rows: int, read_before: int) -> Iterator[LineChunk]:
    """All lines of a stream in chunks of `rows` rows, blank lines not counted; `first` is the first row's number."""
    file, offset = stream.file, stream.skip(BOM)
    line = 1
    held: list[bytes] = []
    count = 0

    def chunk() -> LineChunk:
        return LineChunk(
            first=first,
            count=count,
            read=read_before + min(stream.consumed(), file.size),
            file=file.name,
            line=line,
            offset=offset,
            measured_in=stream.measured_in,
            lines=held,
        )

    for block in line_blocks(stream):
        for raw in block:
            held.append(raw)
            count += not is_blank(raw)
            if count == rows:
                yield chunk()
                first, line, offset = first + count, line + len(held), offset + sum(map(len, held)) + len(held)
                held, count = [], 0
    if count:
        yield chunk()


def line_items(file: DataFile, position: int, end: int) -> Items:
    """Rows that begin at or after the byte `position`, which must be the start of a line, and before the byte `end`."""
    with ByteStream(file, position) as stream:
        offset = position or stream.skip(BOM)
        for block in line_blocks(stream):
            for raw in block:
                if offset >= end:
                    return
                after = offset + len(raw) + 1
                if not is_blank(raw):
                    yield after, row_of(raw, file.name, 0, None, offset, stream.measured_in)
                offset = after


def line_start(file: DataFile, position: int) -> int:
    """The byte at which the first line at or after the byte `position` begins; the file's size when none does. Not for compressed files."""
    if position <= 0:
        return 0
    offset = position - 1
    with ByteStream(file, offset) as stream:
        while block := stream.read():
            found = block.find(b"\n")
            if found >= 0:
                return offset + found + 1
            offset += len(block)
    return file.size
