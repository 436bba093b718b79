"""JSON with duplicate keys refused and the line of every key."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ftcore.spec.document import MOST_DIGITS, KeyPath, dotted
from ftcore.spec.errors import Problem
from ftcore.spec.variables import Variables

_SPACE = re.compile(r"[ \t\r\n]*")


def parse_json(text: str, file: str, variables: Variables | None = None) -> tuple[Any, dict[KeyPath, int], list[Problem]]:
    """(data, line of each key, problems), as `parse_yaml`. NaN, infinities and very long integers stay text, for a schema to refuse."""
    if not text.strip():
        return None, {(): 1}, []
    reader = _Reader(text, file, variables)
    try:
        data, end = reader.value(reader.skip(0), ())
        end = reader.skip(end)
        if end != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    except json.JSONDecodeError as error:
        fix = "check commas, brackets and quotes; JSON has no comments and no comma before a closing bracket"
        return None, {}, [Problem(what=f"not valid JSON: {error.msg} (column {error.colno})", fix=fix, file=file, line=error.lineno)]
    return data, reader.lines, reader.problems


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _int(text: str) -> int | str:
    return int(text) if len(text) <= MOST_DIGITS else text


class _Reader:
    """Walks objects and arrays itself, for the positions; leaves scalars to the standard library."""

    def __init__(self, text: str, file: str, variables: Variables | None) -> None:
        self.text = text
        self.file = file
        self.variables = variables
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._scalars = json.JSONDecoder(parse_constant=str, parse_float=_float, parse_int=_int)

    def skip(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def value(self, at: int, path: KeyPath) -> tuple[Any, int]:
        """The value that starts at offset `at`, and the offset after it."""
        self.lines.setdefault(path, self.line(at))
        opening = self.text[at : at + 1]
        if opening == "{":
            return self._object(at, path)
        if opening == "[":
            return self._array(at, path)
        value, end = self._scalars.raw_decode(self.text, at)
        if self.variables is not None and isinstance(value, str) and "${" in value:
            value = self.variables.expand(value, path, self.file, self.line(at))
        return value, end

    def _object(self, at: int, path: KeyPath) -> tuple[dict[str, Any], int]:
        data: dict[str, Any] = {}
        at = self.skip(at + 1)
        if self.text.startswith("}", at):
            return data, at + 1
        while True:
            if not self.text.startswith('"', at):
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", self.text, at)
            line = self.line(at)
            key, at = self._scalars.raw_decode(self.text, at)
            here = (*path, key)
            at = self.skip(at)
            if not self.text.startswith(":", at):
                raise json.JSONDecodeError("Expecting ':' delimiter", self.text, at)
            if key in data:
                what = f"key `{key}` is given twice, on lines {self.lines[here]} and {line}"
                self.problems.append(Problem(what=what, where=dotted(here), fix="keep one of them", file=self.file, line=line))
            self.lines.setdefault(here, line)
            value, at = self.value(self.skip(at + 1), here)
            data.setdefault(key, value)
            at, more = self._next(at, "}")
            if not more:
                return data, at

    def _array(self, at: int, path: KeyPath) -> tuple[list[Any], int]:
        data: list[Any] = []
        at = self.skip(at + 1)
        if self.text.startswith("]", at):
            return data, at + 1
        while True:
            value, at = self.value(at, (*path, len(data)))
            data.append(value)
            at, more = self._next(at, "]")
            if not more:
                return data, at

    def _next(self, at: int, closing: str) -> tuple[int, bool]:
        """(offset after a comma and the blanks that follow it, True), or (offset after `closing`, False)."""
        at = self.skip(at)
        if self.text.startswith(closing, at):
            return at + 1, False
        if not self.text.startswith(",", at):
            raise json.JSONDecodeError("Expecting ',' delimiter", self.text, at)
        return self.skip(at + 1), True
