"""Values of a row's fields: text that can be tokenised, JSON written as text, lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ftcore.data.reading.json_text import STRICT
from ftcore.spec.errors import DataError, Problem

T = TypeVar("T")


class Mistakes:
    """Collects the mistakes of a row; the end of the `with` block raises them together."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def __enter__(self) -> Mistakes:
        return self

    def of(self, make: Callable[[], T], otherwise: T) -> T:
        """What `make` gives; `otherwise` when it raises DataError, which is kept for the end of the block."""
        try:
            return make()
        except DataError as error:
            self._problems.extend(error.problems)
            return otherwise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Raises DataError with all that was collected."""
        if error is None and self._problems:
            raise DataError(self._problems)


def each_of(values: Sequence[Any], name: str, make: Callable[[Any, str], T]) -> list[T]:
    """`make` of each value and its place, `name[0]`, `name[1]`, ... Raises DataError with the mistakes of all of them."""
    made: list[T] = []
    problems: list[Problem] = []
    for index, value in enumerate(values):
        try:
            made.append(make(value, f"{name}[{index}]"))
        except DataError as error:
            problems.extend(error.problems)
    if problems:
        raise DataError(problems)
    return made


def kind(value: Any) -> str:
    """What a value is, for messages to the user."""
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    names = {dict: "an object", str: "a string", int: "a number", float: "a number", bool: "true or false", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def checked_text(value: Any, name: str) -> str:
    """A text. Raises DataError when `value` is none, or holds what no tokenizer reads."""
    if not isinstance(value, str):
        raise DataError(f"{name} is {kind(value)}", fix="a string; only text is trained on")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                f"{name} holds half of a surrogate pair (\\u{ord(value[error.start]):04x})", fix="repair the escape in the file: no tokenizer reads it"
            ) from None
    return value


def optional_text(value: Any, name: str) -> str:
    """A text that may be missing; null and nothing are an empty one. Raises DataError as `checked_text`."""
    return "" if value is None else checked_text(value, name)


def parsed(text: str, name: str) -> Any:
    """The value that JSON text holds, with exactly its own keys. Raises DataError when it is not JSON, or gives a key twice."""
    try:
        return STRICT.decode(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is text that is not JSON: {error}", fix="write it as JSON (keys and texts in double quotes), or as an object") from None


def unpacked(value: Any, name: str) -> Any:
    """`value`, or what it holds when it is the JSON text of a list or an object, as in a CSV file. Raises DataError as `parsed`."""
    return parsed(value, name) if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") else value


def check_nested(value: Any, name: str) -> None:
    """Raises DataError when something in `value` is no JSON (a date, bytes, NaN), or a text in it can't be tokenised."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{name} holds what JSON does not have: {error}", fix="write it as text or a number") from None
    checked_text(text, name)
