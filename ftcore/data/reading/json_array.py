"""A JSON array of objects, read element by element: a window of its text is held, never all of it (but for an element as large as that)."""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass, field
from typing import Any

from ftcore.data.reading.json_text import ESCAPED, LENIENT, STRICT, BadTextError, as_object, excerpt, not_utf8
from ftcore.data.reading.rows import BadRow, DataFile, Items, Row, bad_row
from ftcore.data.reading.streams import BOM, ByteStream
from ftcore.spec.errors import DataError, Problem

SPACE = re.compile(r"[ \t\r\n]*")
COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
LONGEST_TOKEN = 16
"""An error nearer than this to the end of what was read may be a token cut in two: \\ud83d\\ude00 has 12 characters, -Infinity 9."""


@dataclass(slots=True)
class _Window:
    """A part of the text, and where it stands in the file."""

    stream: ByteStream
    decoder: Any = field(default_factory=codecs.getincrementaldecoder("utf-8"))
    text: str = ""
    at: int = 0
    """Where reading stands in `text`."""
    known: tuple[int, int] = (0, 0)
    """A character at or before `at`, and its byte in the file."""
    line: int = 1
    """Line at `at`."""
    ended: bool = False
    damaged: bool = False
    """Whether some bytes are no UTF-8; they stand in `text` as `surrogateescape` decodes them."""

    def more(self) -> bool:
        """Reads on, twice as far each time; False at the end of the file."""
        wanted = max(len(self.text) - self.at, 1)
        parts: list[str] = []
        got = 0
        while got < wanted and not self.ended:
            block = self.stream.read()
            self.ended = not block
            parts.append(self._decoded(block))
            got += len(parts[-1])
        if got:
            self.known = (0, self.byte(self.at))
            self.text, self.at = "".join([self.text[self.at :], *parts]), 0
        return got > 0

    def byte(self, at: int) -> int:
        """The byte in the file of the character `at`, which is not before the one that is known."""
        character, byte = self.known
        between = self.text[character:at]
        byte += len(between) if between.isascii() else len(between.encode("utf-8", "surrogateescape"))
        if at <= self.at:
            self.known = (at, byte)
        return byte

    def skip_space(self) -> str:
        """Goes to the next character that is no white space and gives it; "" at the end of the file."""
        while True:
            after = SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches nothing, too
            self.move(after)
            if after < len(self.text):
                return self.text[after]
            if not self.more():
                return ""

    def skip_comma(self) -> bool:
        """Goes over a comma and the white space around it, where all of that is in the window; else it stays where it is."""
        found = COMMA.match(self.text, self.at)
        if found is None or found.end() == len(self.text):
            return False
        self.move(found.end())
        return True

    def move(self, to: int) -> None:
        """Goes on to the character `to`."""
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def _decoded(self, block: bytes) -> str:
        state = self.decoder.getstate()
        try:
            return str(self.decoder.decode(block, final=self.ended))
        except UnicodeDecodeError:
            self.damaged = True
            self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
            self.decoder.setstate(state)
            return str(self.decoder.decode(block, final=self.ended))


def array_items(file: DataFile, position: int = 0, first: int = 0) -> Items:
    """The elements that begin after the byte `position` (0, or what stands beside an element), numbered from `first` if it isn't 0.

    Raises DataError where the array is broken or cut: what comes after can't be told apart.
    """
    with ByteStream(file, position) as stream:
        mark = 0 if position else stream.skip(BOM)
        window = _Window(stream, known=(0, position or mark))
        if not position:
            window.skip_space()
            window.move(window.at + 1)
        yield from _elements(window, position > 0, first)


def _elements(window: _Window, begun: bool, number: int) -> Items:
    """`begun`: reading stands behind an element. Numbered rows come with the bytes of the file that were read so far: a position takes time to find out."""
    file = window.stream.file.name
    while True:
        if not (begun and window.skip_comma()):
            character = window.skip_space()
            if character == "]":
                return _check_end(window, number)
            if begun:
                if character != ",":
                    raise _broken(window, number, window.at, "',' or ']' must follow an element" if character else "the array is cut off")
                window.move(window.at + 1)
                window.skip_space()
        row = _element(window, file, number, window.line if number else None)
        yield window.stream.consumed() if number else window.byte(window.at), row
        begun = True
        number += number > 0


def _element(window: _Window, file: str, number: int, line: int | None) -> Row | BadRow:
    value: Any = None
    reason = ""
    while True:
        try:
            value, end = STRICT.raw_decode(window.text, window.at)
        except json.JSONDecodeError as error:
            if _may_be_cut(window, error) and window.more():
                continue
            raise _broken(window, number, error.pos, error.msg) from None
        except RecursionError as error:
            raise _broken(window, number, window.at, f"{error}") from None
        except ValueError as error:
            reason = str(error)
            end = _end_of(window, number)
            if end < 0:
                continue
        if end < len(window.text) or not window.more():
            break
    start, wrong = window.at, ESCAPED.search(window.text, window.at, end) if window.damaged else None
    try:
        if wrong:
            raise not_utf8(ord(wrong[0]) - 0xDC00, window.byte(wrong.start()), window.stream.measured_in)
        if reason:
            raise BadTextError(f"not usable JSON: {reason}", "an array of objects")
        row: Row | BadRow = Row(number=number, file=file, line=line, value=as_object(value))
    except BadTextError as error:
        row = bad_row(file, number, line, 0 if number else window.byte(start), what=error.what, fix=error.fix)
    window.move(end)
    return row


def _end_of(window: _Window, number: int) -> int:
    """Where the element ends whose values are refused; -1: more was read, try again."""
    try:
        return LENIENT.raw_decode(window.text, window.at)[1]
    except json.JSONDecodeError as error:
        if _may_be_cut(window, error) and window.more():
            return -1
        raise _broken(window, number, error.pos, error.msg) from None
    except (ValueError, RecursionError) as error:  # a number of too many digits
        raise _broken(window, number, window.at, str(error)) from None


def _may_be_cut(window: _Window, error: json.JSONDecodeError) -> bool:
    return not window.ended and (error.msg.startswith("Unterminated string") or error.pos > len(window.text) - LONGEST_TOKEN)


def _broken(window: _Window, number: int, at: int, reason: str) -> DataError:
    """The error at the character `at` of the window."""
    line = window.line + window.text.count("\n", window.at, at)
    after = " (the file ends there)" if window.ended and at >= len(window.text.rstrip()) else ""
    what = f"not a JSON array: {reason} at byte offset {window.byte(at)} of {window.stream.measured_in}{after}: {excerpt(window.text, at)}"
    where = f"row {number}" if number else ""
    return DataError([Problem(what=what, where=where, file=window.stream.file.name, line=line, fix="was the file cut? rows after this place can't be read")])


def _check_end(window: _Window, number: int) -> None:
    window.move(window.at + 1)
    if window.skip_space():
        raise _broken(window, number, window.at, "something follows the end of the array")
