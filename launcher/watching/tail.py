"""A file of JSON lines, followed from its end: what was read once is not read again."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.recorded import recorded_object
from launcher.json_lines import Message

FIRST_BYTES = 1 << 20
"""Of the end of a file that is looked at for the first time."""
MOST_AT_ONCE = 1 << 24
"""A longer line, as a broken disk may leave one, is passed over."""
MARK_BYTES = 256
SAMPLE_BYTES = 1 << 16
"""The longest line that a sample of the file's earlier part finds."""


@dataclass(frozen=True, slots=True)
class News:
    """What has come since the last look."""

    lines: list[Message]
    is_anew: bool
    """The file is another one, or was cut or rewritten: what came before no longer counts."""


class JsonTail:
    """One file, which need not be there yet."""

    def __init__(self, path: Path, *, first_bytes: int = FIRST_BYTES, samples: int = 0) -> None:
        """`samples`: so many lines are taken of the part before the last `first_bytes`, evenly spread, at a first look."""
        self.path = path
        self._first_bytes, self._samples = first_bytes, samples
        self._place: int | None = None
        """Behind the last whole line that was read; None: nothing was."""
        self._inode = 0
        self._mark = b""
        """The bytes before `_place`: others there mean that the file was rewritten."""

    def poll(self) -> News:
        """The whole lines that are new; half a line waits for its rest. What is no JSON object is passed over."""
        # Opening a pipe would wait for its writer.
        if self.path.is_file():
            with contextlib.suppress(OSError), self.path.open("rb") as file:
                return self._read(file.fileno())
        is_anew = self._place is not None
        self._place, self._mark = None, b""
        return News([], is_anew)

    def _read(self, handle: int) -> News:
        state = os.fstat(handle)
        is_anew = self._place is None or self._is_other(handle, state)
        early: list[Message] = []
        if is_anew:
            start = max(0, state.st_size - self._first_bytes)
            early = self._sampled(handle, start) if start else []
            self._place, self._inode = self._line_start(handle, start), state.st_ino
        place = self._place or 0
        data = os.pread(handle, MOST_AT_ONCE, place)
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == MOST_AT_ONCE else 0)
        self._place = place + whole
        if is_anew or whole:
            self._mark = os.pread(handle, min(MARK_BYTES, self._place), self._place - min(MARK_BYTES, self._place))
        lines = [found for line in data[:whole].split(b"\n") if (found := recorded_object(line)) is not None]
        return News(early + lines, is_anew)

    def _is_other(self, handle: int, state: os.stat_result) -> bool:
        place = self._place or 0
        if state.st_ino != self._inode or state.st_size < place:
            return True
        return os.pread(handle, len(self._mark), place - len(self._mark)) != self._mark

    @staticmethod
    def _line_start(handle: int, place: int) -> int:
        """The first begin of a line at or behind `place`, or `place` itself where there is none near."""
        if place == 0:
            return 0
        end = os.pread(handle, SAMPLE_BYTES, place - 1).find(b"\n")
        return place + end if end >= 0 else place

    def _sampled(self, handle: int, end: int) -> list[Message]:
        found: list[Message] = []
        for number in range(self._samples):
            start = self._line_start(handle, end * number // self._samples)
            line, newline, _ = os.pread(handle, SAMPLE_BYTES, start).partition(b"\n")
            message = recorded_object(line) if newline and start < end else None
            if message is not None:
                found.append(message)
        return found
