"""A JSON schema's verdict in a user's words: each mistake with its place, its value and the fix."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.document import KeyPath, describe, dotted
from ftcore.spec.errors import Problem
from ftcore.spec.names import ALIASES, SHORTHANDS, nearest
from ftcore.spec.yaml_strict import parse_scalar

Schema = dict[str, Any]
Advise = Callable[[KeyPath, str, Schema], str]
"""(section path, unknown key, schema of the section) -> the fix."""

_KINDS = {
    "object": "a section (keys below it)",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false (a boolean)",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A mistake at a path; who set it is not known here."""

    path: KeyPath
    problem: Problem


@functools.cache
def load_schema(path: Path) -> Schema:
    """The schema in a file of this package."""
    schema: Schema = json.loads(path.read_text(encoding="utf-8"))
    return schema


def check_schema(data: Any, schema: Schema, advise: Advise) -> list[Found]:
    """Every mistake of `data` against `schema`: unknown and refused keys, wrong types, values out of range, missing keys.

    Reads the keywords in KEYWORDS, with the meaning they have in JSON Schema 2020-12, but for one: 1.0 is no integer.
    The package jsonschema gives the same verdicts (a test compares them), but takes 60 ms to import.
    """
    return list(_check(data, schema, (), advise))


def _check(value: Any, schema: Schema, path: KeyPath, advise: Advise) -> Iterator[Found]:
    if "x-refused" in schema:
        yield Found(path, Problem(what=schema["x-refused"], fix=schema.get("x-fix", "remove it")))
        return
    for keyword, fails in _ASSERTIONS.items():
        if keyword in schema and fails(value, schema[keyword]):
            yield Found(path, _problem(keyword, schema[keyword], value, path))
            # One verdict a value: what has the wrong type is out of range as well.
            return
    if isinstance(value, dict):
        yield from _check_keys(value, schema, path, advise)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _check(item, schema.get("items", {}), (*path, position), advise)


def _check_keys(value: dict[str, Any], schema: Schema, path: KeyPath, advise: Advise) -> Iterator[Found]:
    for name in schema.get("required", []):
        if name not in value:
            missing = dotted((*path, name))
            short = f".{SHORTHANDS[missing]}" if missing in SHORTHANDS else ""
            yield Found((*path, name), Problem(what="missing", fix=f"add `{missing}{short}`"))
    known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for key, inner in value.items():
        here = (*path, key)
        if key in known:
            yield from _check(inner, known[key], here, advise)
        elif others is not False:
            yield from _check(inner, others, here, advise)
        else:
            yield Found(here, Problem(what=f"unknown key `{key}`", fix=advise(path, key, schema)))
            yield from _keys_of_unknown(inner, here, advise)


def _keys_of_unknown(value: Any, path: KeyPath, advise: Advise) -> Iterator[Found]:
    """The keys below an unknown key, as far as there is advice on them."""
    for key in value if isinstance(value, dict) else ():
        fix = advise(path, key, {})
        if fix:
            yield Found((*path, key), Problem(what=f"unknown key `{key}`, in an unknown section", fix=fix))


def advise_from_schema(_: KeyPath, key: str, schema: Schema) -> str:
    """The nearest key that the schema of the section knows and does not refuse; nothing without a schema."""
    choices = [name for name, rule in schema.get("properties", {}).items() if "x-refused" not in rule]
    return nearest(key, choices) if choices else ""


def _is(kind: str, value: Any) -> bool:
    """Whether a value is of a JSON Schema type."""
    if kind == "null":
        return value is None
    if kind in ("integer", "number"):
        return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
    return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool}[kind])


def _is_number(value: Any) -> bool:
    return _is("number", value)


_ASSERTIONS: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda value, kinds: not any(_is(kind, value) for kind in ([kinds] if isinstance(kinds, str) else kinds)),
    "enum": lambda value, choices: value not in choices,
    "minimum": lambda value, limit: _is_number(value) and value < limit,
    "maximum": lambda value, limit: _is_number(value) and value > limit,
    "exclusiveMinimum": lambda value, limit: _is_number(value) and value <= limit,
    "exclusiveMaximum": lambda value, limit: _is_number(value) and value >= limit,
    "minLength": lambda value, limit: isinstance(value, str) and len(value) < limit,
    "uniqueItems": lambda value, wanted: wanted and isinstance(value, list) and any(item in value[:position] for position, item in enumerate(value)),
}
"""Keyword -> whether a value fails it; every assertion but `type` and `enum` looks at values of its own type only."""

_ANNOTATIONS = {"$schema", "title", "description", "default", "x-refused", "x-fix", "x-stages"}
KEYWORDS = {*_ASSERTIONS, *_ANNOTATIONS, "properties", "additionalProperties", "required", "items"}


def _problem(keyword: str, limit: Any, value: Any, path: KeyPath) -> Problem:
    """A failed assertion in plain words."""
    shown = describe(value)
    if keyword == "type":
        kinds = [kind for kind in (limit if isinstance(limit, list) else [limit]) if kind != "null"]
        return Problem(what=f"{' or '.join(_KINDS[kind] for kind in kinds)} expected, got {shown}", fix=_type_fix(kinds[0], value, path))
    if keyword == "enum":
        choices = [str(choice) for choice in limit if choice is not None]
        note = ALIASES.get(str(value), "")
        return Problem(what=f"one of {', '.join(choices)} expected, got {shown}", fix=note[1:] if note.startswith("=") else nearest(str(value), choices))
    bounds = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than", "exclusiveMaximum": "less than"}
    if keyword in bounds:
        return Problem(what=f"{shown} is out of range", fix=f"give {bounds[keyword]} {limit}")
    if keyword == "minLength":
        return Problem(what="it is empty", fix="give a value, or leave the key out")
    return Problem(what="the list names one thing twice", fix="name each once")


def _type_fix(kind: str, value: Any, path: KeyPath) -> str:
    """What to write where another type stands."""
    name = dotted(path)
    if kind == "object":
        fits = name in SHORTHANDS and isinstance(value, str | int)
        return f"write `{name}.{SHORTHANDS[name]}: {value}`" if fits else f"write keys below `{name}:`, or remove it"
    if kind == "boolean":
        return "write true or false, without quotes"
    if kind == "string":
        return "put it in quotes" if isinstance(value, int | float) else "write plain text"
    if kind == "array":
        return "write a list: [a, b]"
    if value is None:
        return "give a number, or leave the key out"
    if isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    return _number_fix(kind, value) if isinstance(value, str) else f"give {_KINDS[kind]}"


def _number_fix(kind: str, text: str) -> str:
    """What to write for a text that looks like a number (`"1e-5"`, `1_000`, `017`)."""
    plain = text.replace("_", "").replace(",", "").strip()
    if plain.isdigit():
        plain = plain.lstrip("0") or "0"
    return f"write {plain}, without quotes" if _is(kind, parse_scalar(plain)) else f"give {_KINDS[kind]}"
