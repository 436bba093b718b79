"""One spec file as plain data, with the line of every key: strict YAML or strict JSON, by the file's suffix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ftcore.spec.errors import Problem
from ftcore.spec.variables import KeyPath, Variables

__all__ = ["Document", "KeyPath", "bad_text", "describe", "dotted", "leaves", "read_document", "unreadable"]

_BOM = "\ufeff"
SCHEMA_KEY = "$schema"
"""Tells an editor where the schema lies; no part of a spec."""
MOST_DIGITS = 30
"""Longer integers stay text: no key takes one, and Python refuses to read very long ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a file says. `data` is a mapping unless `problems` tells why not."""

    data: dict[str, Any]
    lines: dict[KeyPath, int]
    """1-based line of each key and list item."""
    problems: tuple[Problem, ...]
    """Mistakes of form: syntax, duplicate keys, and so on; with a syntax error `data` is empty."""
    readable: bool = True
    """False when the syntax is broken, so that nothing can be said about the content."""
    variables: dict[KeyPath, list[str]] = field(default_factory=dict)
    """Key -> the references to the environment in its value, `${NAME}` each."""
    unset: dict[KeyPath, list[Problem]] = field(default_factory=dict)
    """Path of a value that refers to what is not set, None in `data` -> the problems, which count unless the value is not needed."""


def dotted(path: KeyPath) -> str:
    """`a.b[2].c`: how a path is shown to a user."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def leaves(data: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is no mapping, with its path; an empty mapping is a value."""
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def read_document(raw: bytes, file: str, variables: Variables | None = None) -> Document:
    """Parses the bytes of `file` (its suffix .json chooses JSON, all else YAML). Never raises for what a file may hold.

    With `variables`, references to the environment are replaced: what stands for a whole unquoted scalar of YAML is read by its form, all else is text.
    """
    try:
        text = raw.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = Problem(what=f"not UTF-8: byte 0x{raw[error.start]:02x}", fix="save the file as UTF-8", file=file, line=line)
        return unreadable(problem)
    if file.endswith(".json"):
        from ftcore.spec.json_strict import parse_json as parse
    else:
        from ftcore.spec.yaml_strict import parse_yaml as parse
    try:
        data, lines, problems = parse(text, file, variables)
    except RecursionError:
        return unreadable(Problem(what="nested too deeply to read", fix="a spec needs four levels", file=file))
    if data is None and problems:
        return Document(data={}, lines={}, problems=tuple(problems), readable=False)
    if not isinstance(data, dict):
        what = "the file is empty" if data is None else f"sections (a mapping) expected at the top, got {describe(data)}"
        return unreadable(Problem(what=what, fix="start with `model:` and `data:`", file=file, line=lines.get((), 1)))
    if isinstance(data.get(SCHEMA_KEY), str):
        del data[SCHEMA_KEY]
    for path, value, reason in bad_text(data):
        problems.append(Problem(what=f"{reason} in {describe(value)}", where=dotted(path), fix="write plain text", file=file, line=lines.get(path)))
    if variables is None:
        return Document(data=data, lines=lines, problems=tuple(problems))
    return Document(data=data, lines=lines, problems=tuple(problems), variables=variables.used, unset=variables.unset)


def unreadable(problem: Problem) -> Document:
    """A document of which only the reason is known why it can't be read."""
    return Document(data={}, lines={}, problems=(problem,), readable=False)


def bad_text(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str, str]]:
    """(path, text, reason) of every key or value that no file name and no UTF-8 file can hold."""
    if isinstance(data, str):
        if "\0" in data:
            yield path, data, "a NUL character"
        elif any("\ud800" <= character <= "\udfff" for character in data):
            yield path, data, "half a surrogate pair"
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from bad_text(key, (*path, key))
            yield from bad_text(value, (*path, key))
    elif isinstance(data, list):
        for position, value in enumerate(data):
            yield from bad_text(value, (*path, position))


def describe(value: Any) -> str:
    """A value with its kind, as an error names it: `text 'false'`, `number 3`, `a list`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean {'true' if value else 'false'}"
    if isinstance(value, int | float):
        return f"number {value}"
    if isinstance(value, str):
        shown = value if len(value) <= 60 else value[:57] + "..."
        return f"text {ascii(shown) if not shown.isprintable() else repr(shown)}"
    return "a list" if isinstance(value, list) else "a mapping"
