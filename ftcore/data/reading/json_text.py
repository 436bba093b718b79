"""JSON values, strictly: no key twice in one object, no NaN; and what is wrong with a text that is none."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from ftcore.data.reading.streams import BOM

ONE_A_LINE = "one JSON object a line"
AN_OBJECT = 'write {"messages": [...]} or {"prompt": "...", "completion": "..."}'
ESCAPED = re.compile("[\udc80-\udcff]")
"""Bytes that are no UTF-8, as `surrogateescape` decodes them."""


class BadTextError(ValueError):
    """Why a text is no row: `what` and `fix` of the problem to report."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


STRICT = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
"""Its decode raises ValueError for a key that stands twice, for NaN, and for what is no JSON."""
LENIENT = json.JSONDecoder()
"""Only to find where a value ends."""


def object_of(raw: bytes, offset: int, of: str) -> dict[str, Any]:
    """The JSON object that a line holds; `offset` is where the line begins, in bytes of `of` (the file, or its text). Raises BadTextError."""
    try:
        text = raw.decode()
        value, end = STRICT.raw_decode(text)
        if type(value) is dict and (end == len(text) or not text[end:].strip()):
            return value
    except (ValueError, RecursionError):
        pass  # the slow way below says what is wrong
    return _checked(raw, offset, of)


def _checked(raw: bytes, offset: int, of: str) -> dict[str, Any]:
    text = decoded(raw, offset, of)
    try:
        value = STRICT.decode(text)
    except json.JSONDecodeError as error:
        if raw.startswith(BOM):
            raise BadTextError("the line begins with a byte order mark; were two files joined?", "remove the mark") from None
        raise BadTextError(f"not JSON: {error.msg} at column {error.colno}: {excerpt(text, error.pos)}", f"{ONE_A_LINE}; was the file cut?") from None
    except (ValueError, RecursionError) as error:
        raise BadTextError(f"not usable JSON: {error}", ONE_A_LINE) from None
    return as_object(value)


def as_object(value: Any) -> dict[str, Any]:
    """`value` if it is an object. Raises BadTextError."""
    if isinstance(value, dict):
        return value
    raise BadTextError(f"a row must be a JSON object, this is {kind_of(value)}", AN_OBJECT)


def decoded(raw: bytes, offset: int, of: str) -> str:
    """`raw` as text; `offset` is that of its first byte in `of`. Raises BadTextError naming the first byte that is no UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(raw[error.start], offset + error.start, of) from None


def not_utf8(byte: int, offset: int, of: str) -> BadTextError:
    """The error for a byte that is no UTF-8, at `offset` in `of`."""
    hint = " (a file in UTF-16 begins like this)" if byte in (0xFE, 0xFF) and offset == 0 else ""
    return BadTextError(f"not UTF-8: byte 0x{byte:02x} at byte offset {offset} of {of}{hint}", "save the file as UTF-8")


def excerpt(text: str, position: int) -> str:
    """What stands around `position`."""
    return repr(text[max(0, position - 30) : position + 10])


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {dict: "an object", list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false", type(None): "null"}
    return names[type(value)]
