"""YAML without its traps: one meaning a scalar, no silent duplicates, and the line of every key.

A plain scalar is null (`null`, `~` or nothing), a boolean (`true`, `false`), an integer (`-12`), a float (`1e-5`, `5E-4`, `0.1`) or text.
So `no`, `off`, `24:00:00`, `017`, `1_000`, `0x1f`, `.nan` and dates are text; a schema then says what it expected instead.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from ftcore.spec.document import MOST_DIGITS, KeyPath, dotted
from ftcore.spec.errors import Problem
from ftcore.spec.variables import Variables, is_reference

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_NULLS = ("", "~", "null", "Null", "NULL")


def parse_scalar(text: str) -> Any:
    """The value of an unquoted scalar: None, bool, int, a finite float, or the text itself."""
    if text in _NULLS:
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) <= MOST_DIGITS else text
    if _FLOAT.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) else text
    return text


def parse_yaml(text: str, file: str, variables: Variables | None = None) -> tuple[Any, dict[KeyPath, int], list[Problem]]:
    """(data, line of each key, problems). After a syntax error data is None and the problem says where. Raises RecursionError on absurd nesting."""
    reader = _Reader(file, variables)
    try:
        node = _Loader(text, reader).get_single_node()
    except yaml.MarkedYAMLError as error:
        return None, {}, [_syntax_problem(error, file)]
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return None, {}, [Problem(what=f"not valid YAML: the character {_hex(error.character)}", fix="remove it", file=file, line=line)]
    if node is None:
        return None, {(): 1}, []
    return reader.value(node, ()), reader.lines, reader.problems


def _hex(character: str | int) -> str:
    return f"U+{character if isinstance(character, int) else ord(character):04X}"


def _syntax_problem(error: yaml.MarkedYAMLError, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    reason = ": ".join(part for part in (error.context, error.problem) if part)
    if "'\\t'" in reason:
        fix = "indent with spaces, not with tabs"
    elif "but got '{'" in reason:
        fix = "check commas and brackets; a `${NAME}` inside brackets needs quotes"
    elif "mapping values" in reason:
        fix = "check the indentation, and quote a text that holds `: `"
    else:
        fix = "check indentation, brackets and quotes here and on the line above"
    return Problem(what=f"not valid YAML: {reason}", fix=fix, file=file, line=mark.line + 1 if mark else None)


class _Reader:
    """Turns a node graph into plain data and remembers lines and mistakes."""

    def __init__(self, file: str, variables: Variables | None) -> None:
        self.file = file
        self.variables = variables
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, position)) for position, item in enumerate(node.value)]
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        if self.variables is None or "${" not in node.value:
            return parse_scalar(node.value) if plain else node.value
        text = self.variables.expand(node.value, path, self.file, node.start_mark.line + 1)
        return parse_scalar(text) if text is not None and plain and is_reference(node.value) else text

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.note("a key must be plain text", dotted(path), "write `key: value`", line)
                continue
            key = key_node.value
            if key == "<<" and key_node.style is None:
                self.note("merge keys (`<<`) are not read", dotted(path), "write the keys out", line)
                continue
            here = (*path, key)
            if key in data:
                self.note(f"key `{key}` is given twice, on lines {self.lines[here]} and {line}", dotted(here), "keep one of them", line)
                continue
            self.lines[here] = line
            data[key] = self.value(value_node, here)
        return data

    def note(self, what: str, where: str, fix: str, line: int) -> None:
        self.problems.append(Problem(what=what, where=where, fix=fix, file=self.file, line=line))


class _Loader(yaml.SafeLoader):
    """Composes nodes only; refuses what would give one text two meanings (tags) or one value two places (anchors)."""

    def __init__(self, text: str, reader: _Reader) -> None:
        super().__init__(text)
        self._reader = reader

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            self._reader.note(f"`*{event.anchor}` (an alias) is not read", "", "write the value out", line)
            self.get_event()  # type: ignore[no-untyped-call]
            start: Any = event.start_mark
            return yaml.ScalarNode("tag:yaml.org,2002:null", "", start, start)
        if event.anchor:
            self._reader.note(f"`&{event.anchor}` (an anchor) is not read", "", "remove it, and write values out where they are used", line)
        if event.tag:
            self._reader.note(f"a tag ({event.tag}) is not read", "", "remove it: a quoted value is text, an unquoted one is read by its form", line)
        return super().compose_node(parent, index)
