"""Values of a merged spec that are not taken as they stand: sizes and durations become plain numbers, and what looks like a secret is taken out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from ftcore.spec.document import KeyPath
from ftcore.spec.errors import Problem
from ftcore.spec.quantities import QuantityError, parse_duration, parse_size
from launcher.schema_check import SPEC_SCHEMA, load_schema
from launcher.secret_forms import secret_in

SECRET_FIX = "remove it: what needs it finds it in the environment (the launching shell's, or --env-file)"


def read_quantities(data: dict[str, Any]) -> None:
    """Puts a plain number (bytes, seconds) in place of each text that is a size or a duration; one that is none stays, for the schema to refuse."""
    for path, (quantity, is_whole) in _quantity_keys().items():
        home: Any = data
        for part in path[:-1]:
            home = home.get(part) if isinstance(home, dict) else None
        if isinstance(home, dict) and isinstance(home.get(path[-1]), str):
            home[path[-1]] = _number(home[path[-1]], quantity, is_whole)


def _number(text: str, quantity: str, is_whole: bool) -> Any:
    try:
        value = parse_size(text) if quantity == "size" else parse_duration(text)
    except QuantityError:
        return text
    return int(value) if is_whole and float(value).is_integer() else value


@functools.cache
def _quantity_keys() -> dict[tuple[str, ...], tuple[str, bool]]:
    """Key -> (size or duration, whether it is a whole number)."""
    found = _entries(load_schema(SPEC_SCHEMA), ())
    return {path: (entry["x-quantity"], "integer" in entry["type"]) for path, entry in found if "x-quantity" in entry}


def _entries(schema: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for key, entry in schema.get("properties", {}).items():
        yield (*above, key), entry
        yield from _entries(entry, (*above, key))


def secrets(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Problem]]:
    """Each value that looks like a secret by its form, and why it is refused. cluster.environment has a stricter rule of its own."""
    if isinstance(data, dict) and path != ("cluster", "environment"):
        for key, value in data.items():
            yield from secrets(value, (*path, key))
    elif isinstance(data, list):
        for position, value in enumerate(data):
            yield from secrets(value, (*path, position))
    elif isinstance(data, str):
        kind = secret_in(data)
        if kind:
            yield path, Problem(what=f"this looks like {kind}, and what a spec says is written into the run folder", fix=SECRET_FIX)


def secret_lines(text: str) -> Iterator[tuple[int, str]]:
    """1-based number of each line of a file that holds what looks like a secret, and what it looks like: comments are copied with the file."""
    for number, line in enumerate(text.splitlines(), start=1):
        kind = secret_in(line)
        if kind:
            yield number, kind
