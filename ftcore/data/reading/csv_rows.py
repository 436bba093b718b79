"""CSV by the standard library's reader, strictly: the first line names the fields, every value is a string.

Fields are separated by tabs in a .tsv; else by commas, or by semicolons or tabs where the header has those and no comma.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from ftcore.data.reading.json_text import ESCAPED, BadTextError, not_utf8
from ftcore.data.reading.rows import BadRow, DataFile, Items, Row, bad_row
from ftcore.data.reading.streams import BOM, ByteStream, line_blocks
from ftcore.spec.errors import DataError, Problem

LARGEST_FIELD = 64 << 20
"""Characters of one value; a quote that nothing closes would otherwise take in the whole file."""


class _Lines:
    """Lines for csv.reader, which keeps line ends inside quotes: with the place of the last one given, and what is wrong with its bytes."""

    def __init__(self, stream: ByteStream, offset: int) -> None:
        self.stream = stream
        self.offset = offset
        """Byte after the last line that was given."""
        self.line = 0
        """1-based number of the last line that was given."""
        self.wrong: BadTextError | None = None
        """The first byte that is no UTF-8 since it was last reset."""

    def __iter__(self) -> Iterator[str]:
        for block in line_blocks(self.stream):
            for raw in block:
                text = raw.decode("utf-8", "surrogateescape")
                if not text.isascii() and self.wrong is None and (found := ESCAPED.search(text)):
                    before = len(text[: found.start()].encode("utf-8", "surrogateescape"))
                    self.wrong = not_utf8(ord(found[0]) - 0xDC00, self.offset + before, self.stream.measured_in)
                self.offset += len(raw) + 1
                self.line += 1
                yield text + "\n"


def csv_items(file: DataFile, position: int = 0, end: int | None = None, first: int = 0) -> Items:
    """The rows that begin at or after the byte `position` (0, or where a row begins) and before `end`, numbered from `first` if it isn't 0.

    Numbered rows come with the bytes of the file that were read so far instead of a position.
    Raises DataError for a header that names no fields or one twice, and for a quote that nothing closes.
    """
    csv.field_size_limit(LARGEST_FIELD)
    with ByteStream(file) as stream:
        lines = _Lines(stream, stream.skip(BOM))
        source = iter(lines)
        delimiter, names = _header(lines, source)
        if position <= lines.offset:
            yield from _records(lines, csv.reader(source, delimiter=delimiter, strict=True), names, end, first)
            return
    with ByteStream(file, position) as stream:
        lines = _Lines(stream, position)
        yield from _records(lines, csv.reader(iter(lines), delimiter=delimiter, strict=True), names, end, first)


def _records(lines: _Lines, reader: Iterator[list[str]], names: list[str], end: int | None, number: int) -> Items:
    file = lines.stream.file
    while end is None or lines.offset < end:
        start, line = lines.offset, lines.line + 1 if number else None
        lines.wrong = None
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if "unexpected end of data" in str(error) or "field limit" in str(error):
                raise _unclosed(file, number, line, start) from None
            row: Row | BadRow = bad_row(file.name, number, line, start, what=f"not CSV: {error}", fix="double a quote inside a quoted value")
        else:
            if cells is None:
                return
            if not cells or (len(cells) == 1 < len(names) and not cells[0].strip()):
                continue
            row = _row(cells, names, lines.wrong, (file.name, number, line, start))
        yield lines.stream.consumed() if number else lines.offset, row
        number += number > 0


def _header(lines: _Lines, source: Iterator[str]) -> tuple[str, list[str]]:
    """(delimiter, field names)."""
    file = lines.stream.file
    text = next((line for line in source if line.strip()), "")
    delimiter = "\t" if is_tsv(file.name) else _delimiter(text)
    try:
        # A name may hold a line end inside quotes, so the reader may need more lines.
        names = next(csv.reader(chain([text], source), delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise _bad_header(file, f"the header is not CSV: {error}") from None
    if lines.wrong is not None:
        raise _bad_header(file, lines.wrong.what)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise _bad_header(file, f"the header names {', '.join(map(repr, twice))} more than once")
    return delimiter, names


def is_tsv(name: str) -> bool:
    """Whether a file's fields are separated by tabs whatever its header holds: by its name, packed or not."""
    return re.search(r"\.tsv(\.(gz|zst|bz2|xz))?$", name.lower()) is not None


def _delimiter(header: str) -> str:
    if "," not in header:
        for other in (";", "\t"):
            if other in header:
                return other
    return ","


def _row(cells: list[str], names: list[str], wrong: BadTextError | None, place: tuple[str, int, int | None, int]) -> Row | BadRow:
    file, number, line, start = place
    if wrong is not None:
        return bad_row(file, number, line, start, what=wrong.what, fix=wrong.fix)
    if len(cells) != len(names):
        what = f"{len(cells)} fields, the header has {len(names)}"
        return bad_row(file, number, line, start, what=what, fix="put a value that holds the separator, a quote or a line end in quotes")
    return Row(number=number, file=file, line=line, value=dict(zip(names, cells, strict=True)))


def _unclosed(file: DataFile, number: int, line: int | None, start: int) -> DataError:
    where = f"row {number}" if number else f"position {start}"
    what = "a quoted value that begins here has no end: rows after it can't be told apart"
    return DataError([Problem(what=what, file=file.name, line=line, where=where, fix="close the quote, or double a quote inside a value; was the file cut?")])


def _bad_header(file: DataFile, what: str) -> DataError:
    return DataError([Problem(what=what, file=file.name, line=1, fix="the first line must name the fields, each once")])
