"""What jsonschema finds wrong, in a user's words: each mistake with its place, its value and the fix."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcore.spec import errors
from ftcore.spec.aliases import ALIASES
from ftcore.spec.document import KeyPath, describe, dotted
from ftcore.spec.errors import Problem
from ftcore.spec.names import SHORTHANDS, advise_value, nearest
from ftcore.spec.quantities import DURATION_FORMS, SIZE_FORMS, QuantityError, parse_duration, parse_size
from ftcore.spec.yaml_strict import parse_scalar

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

SPEC_SCHEMA = Path(errors.__file__).with_name("spec.schema.json")

Schema = dict[str, Any]
Advise = Callable[[KeyPath, str, Schema], str]
"""(section path, unknown key, schema of the section) -> the fix."""

MOST_ADVISED = 100
"""Unknown keys of a section that get advice: it takes a millisecond each, and a file with more of them is no spec."""
_KINDS = {
    "object": "a section (keys below it)",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false (a boolean)",
}


_FORMS = {"size": SIZE_FORMS, "duration": DURATION_FORMS}
_PARSERS: dict[str, Callable[[str], float]] = {"size": parse_size, "duration": parse_duration}


@dataclass(frozen=True, slots=True)
class Found:
    """A mistake at a path; who set it is not known here."""

    path: KeyPath
    problem: Problem


@dataclass(frozen=True, slots=True)
class _Failed:
    """A keyword of the schema that a value fails."""

    path: KeyPath
    keyword: str
    limit: Any
    """What the schema says after the keyword."""
    value: Any
    schema: Schema
    """The part of the schema in which the keyword stands."""


@functools.cache
def load_schema(path: Path) -> Schema:
    """The schema in a file of this package."""
    schema: Schema = json.loads(path.read_text(encoding="utf-8"))
    return schema


def check_schema(data: Any, schema: Schema, advise: Advise) -> list[Found]:
    """Every mistake of `data` against `schema`, by path: unknown and refused keys, wrong types, values out of range, missing keys."""
    found: dict[KeyPath, Found] = {}
    # One verdict a value: what has the wrong type is out of range as well.
    for failed in sorted(_failures(data, schema), key=lambda failed: (failed.path, failed.keyword != "type")):
        for item in _mistakes(failed, advise):
            found.setdefault(item.path, item)
    return list(found.values())


def _failures(data: Any, schema: Schema) -> Iterator[_Failed]:
    error: Any
    for error in _strict_validator()(schema).iter_errors(data):
        yield _Failed(tuple(error.absolute_path), error.validator, error.validator_value, error.instance, error.schema)


@functools.cache
def _strict_validator() -> type[Validator]:
    """JSON Schema 2020-12 with three changes: 1.0 is no integer, the keyword `x-refused` refuses every value, for the reason that it gives, and `x-quantity`
    refuses every text, since what is a size or a duration has become a number before.
    """
    # Not at the top of the file: `ftlaunch --help` and `ftlaunch --resume` check no spec.
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import Draft202012Validator, extend

    def refuse(_validator: Validator, reason: str, _value: Any, _schema: Schema) -> Iterator[ValidationError]:
        yield ValidationError(reason)

    def refuse_text(_validator: Validator, quantity: str, value: Any, _schema: Schema) -> Iterator[ValidationError]:
        if isinstance(value, str):
            yield ValidationError(f"no {quantity}")

    strict = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool))
    validator: type[Validator] = extend(Draft202012Validator, validators={"x-refused": refuse, "x-quantity": refuse_text}, type_checker=strict)  # type: ignore[no-untyped-call]
    return validator


def _mistakes(failed: _Failed, advise: Advise) -> Iterator[Found]:
    """The mistakes behind a failure: of each key that is missing or unknown, where it is about the keys of a section, else of its value."""
    if failed.keyword == "required":
        for name in failed.limit:
            if name not in failed.value:
                missing = dotted((*failed.path, name))
                short = f".{SHORTHANDS[missing]}" if missing in SHORTHANDS else ""
                yield Found((*failed.path, name), Problem(what="missing", fix=f"add `{missing}{short}`"))
    elif failed.keyword == "additionalProperties":
        unknown = [key for key in failed.value if key not in failed.schema["properties"]]
        for count, key in enumerate(unknown):
            fix = advise(failed.path, key, failed.schema) if count < MOST_ADVISED else "remove it; is this the right file?"
            yield Found((*failed.path, key), Problem(what=f"unknown key `{key}`", fix=fix))
            yield from _keys_of_unknown(failed.value[key], (*failed.path, key), advise)
    else:
        yield Found(failed.path, WORDINGS[failed.keyword](failed))


def _keys_of_unknown(value: Any, path: KeyPath, advise: Advise) -> Iterator[Found]:
    """The keys below an unknown key, as far as there is advice on them."""
    for key in list(value)[:MOST_ADVISED] if isinstance(value, dict) else ():
        fix = advise(path, key, {})
        if fix:
            yield Found((*path, key), Problem(what=f"unknown key `{key}`, in an unknown section", fix=fix))


def advise_from_schema(_: KeyPath, key: str, schema: Schema) -> str:
    """The nearest key that the schema of the section knows and does not refuse; nothing without a schema."""
    choices = [name for name, rule in schema.get("properties", {}).items() if "x-refused" not in rule]
    return nearest(key, choices) if choices else ""


def _wrong_type(failed: _Failed) -> Problem:
    if "x-quantity" in failed.schema:
        quantity = failed.schema["x-quantity"]
        whole = " in whole seconds" if quantity == "duration" and "integer" in failed.limit else ""
        return Problem(what=f"a {quantity}{whole} expected, got {describe(failed.value)}", fix=f"the forms are {_FORMS[quantity]}")
    kinds = [kind for kind in (failed.limit if isinstance(failed.limit, list) else [failed.limit]) if kind != "null"]
    what = f"{' or '.join(_KINDS[kind] for kind in kinds)} expected, got {describe(failed.value)}"
    meant = advise_value(dotted(failed.path), describe(failed.value).removeprefix("boolean ")) if isinstance(failed.value, bool) else ""
    if kinds[0] == "array":
        [example] = failed.schema.get("examples") or [["a", "b"]]
        meant = "write a list" + (f": [{', '.join(map(str, example))}]" if not any(isinstance(item, dict) for item in example) else "")
    return Problem(what=what, fix=meant or _type_fix(kinds[0], failed.value, failed.path))


def _no_choice(failed: _Failed) -> Problem:
    choices = [str(choice) for choice in failed.limit if choice is not None]
    note = ALIASES.get(str(failed.value), "")
    meant = advise_value(dotted(failed.path), str(failed.value))
    fix = meant or (note[1:] if note.startswith("=") else nearest(str(failed.value), choices))
    return Problem(what=f"one of {', '.join(choices)} expected, got {describe(failed.value)}", fix=fix)


def _out_of_range(bound: str) -> Callable[[_Failed], Problem]:
    def problem(failed: _Failed) -> Problem:
        unit = {"size": " bytes", "duration": " seconds"}.get(failed.schema.get("x-quantity", ""), "")
        return Problem(what=f"{describe(failed.value)} is out of range", fix=f"give {bound} {failed.limit}{unit}")

    return problem


def _no_quantity(failed: _Failed) -> Problem:
    try:
        _PARSERS[failed.limit](failed.value)
    except QuantityError as error:
        return Problem(what=error.reason, fix=error.fix)
    return Problem(what=f"{describe(failed.value)} is text", fix="write a number")


WORDINGS: dict[str, Callable[[_Failed], Problem]] = {
    "type": _wrong_type,
    "enum": _no_choice,
    "minimum": _out_of_range("at least"),
    "maximum": _out_of_range("at most"),
    "exclusiveMinimum": _out_of_range("more than"),
    "exclusiveMaximum": _out_of_range("less than"),
    "minLength": lambda _: Problem(what="it is empty", fix="give a value, or leave the key out"),
    "uniqueItems": lambda _: Problem(what="the list names one thing twice", fix="name each once"),
    "x-quantity": _no_quantity,
    "x-refused": lambda failed: Problem(what=failed.limit, fix=failed.schema["x-fix"]),
}
"""Keyword -> what is said of a value that fails it. The schemas use no others, but for those about the keys of a section."""


def _type_fix(kind: str, value: Any, path: KeyPath) -> str:
    """What to write where another type stands."""
    name = dotted(path)
    if kind == "object":
        fits = name in SHORTHANDS and isinstance(value, str | int) and not isinstance(value, bool)
        meant = advise_value(f"{name}.{SHORTHANDS[name]}", str(value)).partition("`")[2].partition("`")[0] if fits else ""
        return f"write `{name}.{SHORTHANDS[name]}: {meant or value}`" if fits else f"write keys below `{name}:`, or remove it"
    if kind == "boolean":
        return "write true or false, without quotes"
    if kind == "string":
        missing = "write text, or leave the key out" if value is None else "write plain text"
        return _text_fix(value, path) if isinstance(value, int | float) else missing
    if value is None:
        return "give a number, or leave the key out"
    if isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    return _number_fix(kind, value) if isinstance(value, str) else f"give {_KINDS[kind]}"


def _text_fix(value: float, path: KeyPath) -> str:
    """What to write where a number stands for a text."""
    if path == ("cluster", "scheduler", "time") and not isinstance(value, bool) and float(value).is_integer():
        return f"write `{int(value)}s` if these are seconds, `{int(value)}m` if minutes; Slurm takes a number alone, put in quotes, for minutes"
    return "put it in quotes"


def _number_fix(kind: str, text: str) -> str:
    """What to write for a text that looks like a number (`"1e-5"`, `1_000`, `017`)."""
    plain = text.replace("_", "").replace(",", "").strip()
    if plain.isdigit():
        plain = plain.lstrip("0") or "0"
    return f"write {plain}, without quotes" if _reads_as(kind, plain) else f"give {_KINDS[kind]}"


def _reads_as(kind: str, text: str) -> bool:
    """Whether a text, unquoted, is a number of this kind."""
    value = parse_scalar(text)
    return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
