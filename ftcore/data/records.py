"""Reads rows from JSONL and JSON files, strictly: every row that can't be read is named, none is guessed at.

Rows stay plain Python values. A columnar reader would unify their types, and so put keys of one row into another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ftcore.data.extraction import BUILTIN_PREFIX, builtin_bytes
from ftcore.data.problems import placed, stop_on
from ftcore.data.reading.rows import Row
from ftcore.spec.errors import DataError, Problem

__all__ = ["Row", "load_bytes", "parse_rows"]

BOM = b"\xef\xbb\xbf"


def load_bytes(path: str) -> bytes:
    """The bytes of a data file, or of a data set that is built in (`builtin:extraction/train`). Raises DataError when there are none."""
    if path.startswith(BUILTIN_PREFIX):
        return builtin_bytes(path)
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"no such file: {path}", fix="check the path; a relative one starts at the current folder") from None
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror}", fix="name a JSONL or JSON file that this user may read") from error


def parse_rows(payload: bytes, file: str) -> list[Row]:
    """The rows of a file's bytes. `file` is its name: `.json` may hold one array, anything else holds one object a line.

    Raises DataError naming every row that is not valid UTF-8, not JSON or not an object, and when there are no rows.
    """
    start = len(BOM) if payload.startswith(BOM) else 0
    if file.endswith(".json") and payload[start:].lstrip()[:1] in (b"[", b"{"):
        values = _whole_document(payload, start, file)
        if values is not None:
            return _array_rows(values, file)
    rows: list[Row] = []
    problems: list[Problem] = []
    for line, offset, raw in _lines(payload, start):
        try:
            value = _parse(raw, offset)
        except DataError as error:
            problems += placed(error, file=file, row=len(rows) + len(problems) + 1, line=line)
            continue
        rows.append(Row(number=len(rows) + len(problems) + 1, line=line, value=value))
    stop_on(problems, file)
    return _not_empty(rows, file)


def _lines(payload: bytes, start: int) -> Iterator[tuple[int, int, bytes]]:
    """(line number, byte offset, bytes) of each line that isn't blank. Only \\n ends a line: JSON strings may hold U+2028 as it is."""
    line = 0
    while start < len(payload):
        end = payload.find(b"\n", start)
        end = len(payload) if end < 0 else end
        line += 1
        if payload[start:end].strip():
            yield line, start, payload[start:end]
        start = end + 1


def _parse(raw: bytes, offset: int) -> dict[str, Any]:
    text = _decode(raw, offset)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise DataError(
            f"not JSON: {error.msg} at column {error.colno}: {_excerpt(text, error.pos)}", fix="one JSON object a line; was the file cut?"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not usable JSON: {error}", fix="one JSON object a line") from None
    if not isinstance(value, dict):
        raise DataError(f"a row must be a JSON object, this is {_kind(value)}", fix='write {"messages": [...]} or {"prompt": "...", "completion": "..."}')
    return value


def _decode(raw: bytes, offset: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise DataError(f"not UTF-8: byte 0x{byte:02x} at byte offset {offset + error.start} of the file", fix="save the file as UTF-8") from None


def _whole_document(payload: bytes, start: int, file: str) -> list[Any] | None:
    """The array that a .json file holds; None when it is one object a line after all."""
    try:
        text = _decode(payload[start:], start)
    except DataError as error:
        raise DataError([replace(problem, file=file) for problem in error.problems]) from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        if text.lstrip().startswith("{"):
            return None
        raise DataError(
            [Problem(what=f"not a JSON array: {error.msg}: {_excerpt(text, error.pos)}", file=file, line=error.lineno, fix="was the file cut?")]
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError([Problem(what=f"not usable JSON: {error}", file=file, fix="an array of objects")]) from None
    if isinstance(value, dict):
        return None if "\n" not in text.strip() else _one_object(value, file)
    return list(value)


def _one_object(value: dict[str, Any], file: str) -> NoReturn:
    keys = ", ".join(sorted(value)[:10])
    raise DataError([Problem(what=f"holds one JSON object with the keys {keys}", file=file, fix="make the file an array of rows, or one object a line")])


def _array_rows(values: list[Any], file: str) -> list[Row]:
    fix = 'write {"messages": [...]} or {"prompt": "...", "completion": "..."}'
    problems = [
        Problem(what=f"a row must be a JSON object, this is {_kind(value)}", file=file, where=f"row {number}", fix=fix)
        for number, value in enumerate(values, start=1)
        if not isinstance(value, dict)
    ]
    stop_on(problems, file)
    return _not_empty([Row(number=number, line=None, value=value) for number, value in enumerate(values, start=1)], file)


def _not_empty(rows: list[Row], file: str) -> list[Row]:
    if not rows:
        raise DataError([Problem(what="no rows: the file is empty", file=file, fix="name a file with at least one row")])
    return rows


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false", type(None): "null"}
    return names[type(value)]


def _excerpt(text: str, position: int) -> str:
    return repr(text[max(0, position - 30) : position + 10])
