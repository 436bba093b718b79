"""Rows of files, read on from a position or picked at many: what a lane draws from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from ftcore.data.reading.json_layout import json_layout
from ftcore.data.reading.lines import is_blank, row_of
from ftcore.data.reading.reader import OPEN_END, read_at
from ftcore.data.reading.rows import BadRow, DataFile, Row
from ftcore.data.reading.sniff import sniffed
from ftcore.data.reading.streams import BLOCK_BYTES, BOM
from ftcore.spec.errors import DataError, Problem
from ftcore.stream.state import Place

AnyRow = Row | BadRow
GROUP_BITS = 32
"""A position in a parquet file has its row group above these bits."""
CHECK_ROWS = 256
"""Rows after which it is looked whether a file is still the one that the run began with."""


class FileRows:
    """The rows of a stream's files."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._files = files
        self._states = [_state(file) for file in files]
        self._has_lines = cache(lambda file: _has_lines(files[file]))

    def read(self, file: int, position: int, end: int | None) -> Iterator[tuple[int, int, AnyRow]]:
        """(position, position after, row) of the rows from `position` on that begin before `end`; None: up to the end of the file.

        Raises DataError when the file can't be read, or has changed since this was made. A compressed one is unpacked up to the position.
        """
        before = position
        self._check(file)
        for number, (after, row) in enumerate(read_at(self._files[file], position, OPEN_END if end is None else end), start=1):
            if number % CHECK_ROWS == 0 or isinstance(row, BadRow):
                self._check(file)
            yield before, after, row
            before = after
        self._check(file)

    def pick(self, places: Sequence[Place]) -> list[AnyRow]:
        """The rows at these places, in this order: by seek in files of lines, else in one pass from the first of them to the last.

        Raises DataError when one isn't there any more.
        """
        wanted: dict[tuple[int, int], list[int]] = {}
        for place in sorted(set(places)):
            # A parquet file is read by row groups: those without a wanted row are left out.
            group = place.position >> GROUP_BITS if self._files[place.file].kind == "parquet" else 0
            wanted.setdefault((place.file, group), []).append(place.position)
        found: dict[Place, AnyRow] = {}
        for (file, _), positions in wanted.items():
            rows = self._seek(file, positions) if self._has_lines(file) else self._pass(file, positions)
            found |= {Place(file, position): row for position, row in zip(positions, rows, strict=False)}
        missing = next((place for place in places if place not in found), None)
        if missing is not None:
            raise _gone(self._files[missing.file], missing.position)
        return [found[place] for place in places]

    def _check(self, number: int) -> None:
        """Raises DataError when a file is no longer the one whose digest the position belongs to."""
        file, state = self._files[number], self._states[number]
        if state is not None and (now := _state(file)) is not None and (now != state or now[0] != file.size):
            fix = "put back the file that the run began with and resume; --allow-data-change goes on with this one"
            raise DataError([Problem(what="the file has changed since the run began to read it", file=file.name, fix=fix)])

    def _seek(self, file: int, positions: Sequence[int]) -> Iterator[AnyRow]:
        data = self._files[file]
        with data.path.open("rb") as opened:
            for position in positions:
                opened.seek(position)
                offset, raw = position, opened.readline()
                if not position and raw.startswith(BOM):
                    offset, raw = len(BOM), raw[len(BOM) :]
                while raw and is_blank(raw):
                    offset, raw = offset + len(raw), opened.readline()
                if not raw:
                    raise _gone(data, position)
                yield row_of(raw.removesuffix(b"\n"), data.name, 0, None, offset, "the file")

    def _pass(self, file: int, positions: Sequence[int]) -> Iterator[AnyRow]:
        wanted = iter(positions)
        position = next(wanted, None)
        for before, _, row in self.read(file, positions[0], None):
            if before == position:
                yield row
                position = next(wanted, None)
            if position is None:
                return


def _state(file: DataFile) -> tuple[int, int] | None:
    """Size, and time of the last change; None for what lies elsewhere."""
    try:
        found = file.path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def line_of(file: DataFile, position: int) -> int | None:
    """1-based line of a file of lines on which the row at `position` begins; None for another file. Reads up to it."""
    if not _has_lines(file):
        return None
    line = 1
    with file.path.open("rb") as opened:
        while opened.tell() < position:
            line += opened.read(min(BLOCK_BYTES, position - opened.tell())).count(b"\n")
        while (raw := opened.readline()) and is_blank(raw.removeprefix(BOM)):
            line += 1
    return line


def _has_lines(file: DataFile) -> bool:
    """Whether a file is one that seeking in costs nothing: lines, not compressed, on disk."""
    return file.kind in ("jsonl", "json") and file.path.is_file() and not sniffed(file).compression and json_layout(file) == "lines"


def _gone(file: DataFile, position: int) -> DataError:
    return DataError([Problem(what=f"no row at position {position}", file=file.name, fix="the file has changed: put back the one that was read before")])
