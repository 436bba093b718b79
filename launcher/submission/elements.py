"""The runs of one submission: `--array KEY=V1,V2` gives one for each value, several of them one for each combination."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from ftcore.spec.aliases import ALIASES
from ftcore.spec.errors import Problem, SpecError

MOST_ELEMENTS = 1000
"""More runs than anybody looks at: a longer product is a slip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One run of an array."""

    sets: tuple[str, ...]
    """What it sets, as --set takes it."""
    label: str
    """Its folder's name: `learning_rate=1e-5`; empty for a submission without an array."""


def expand_array(arrays: tuple[str, ...]) -> tuple[Element, ...]:
    """The elements in order, the last --array varying fastest; one without a label when there is no array. Raises SpecError with every mistake."""
    axes: dict[str, list[str]] = {}
    problems = []
    for text in arrays:
        name, equals, values = text.partition("=")
        key, listed = full_key(name.strip()), split_values(values)
        if not equals or not key or any(not value for value in listed):
            problems.append(_problem(f"`KEY=V1,V2` expected, got {text!a}", "for example --array lr=1e-5,2e-5"))
        elif key in axes:
            problems.append(_problem(f"{key} is given twice", "give all its values in one --array"))
        elif len(set(listed)) < len(listed):
            problems.append(_problem(f"{key} has one value twice: {values}", "give each value once"))
        else:
            axes[key] = listed
    elements = [_element(tuple(zip(axes, combination, strict=True))) for combination in itertools.islice(itertools.product(*axes.values()), MOST_ELEMENTS + 1)]
    if len(elements) > MOST_ELEMENTS:
        problems.append(_problem(f"more than {MOST_ELEMENTS} runs", "give fewer values"))
    if len({element.label.lower() for element in elements}) < len(elements):
        problems.append(_problem("two values give a folder the same name", "give values that differ in letters, digits, `.`, `-` or `_`"))
    if problems:
        raise SpecError(problems)
    return tuple(elements)


def full_key(name: str) -> str:
    """The spec's key for a short name such as lr; any other name as it is."""
    meant = ALIASES.get(name, "")
    return meant.split(" ")[0] if meant and not meant.startswith("=") and "." not in name else name


def split_values(text: str) -> list[str]:
    """The values between commas; commas within brackets or quotes belong to a value."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def _element(chosen: tuple[tuple[str, str], ...]) -> Element:
    parts = [f"{key.rpartition('.')[2]}={value}" for key, value in chosen]
    label = "_".join(re.sub(r"[^A-Za-z0-9_.=+-]+", "-", part).strip("-.") for part in parts)[:120]
    return Element(sets=tuple(f"{key}={value}" for key, value in chosen), label=label)


def _problem(what: str, fix: str) -> Problem:
    return Problem(what=what, fix=fix, file="--array")
