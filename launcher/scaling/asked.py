"""The lists of numbers that `ftlaunch scale` takes: ranks and stages."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ftcore.spec.errors import Problem, SpecError

MOST_RANKS = 100_000
MOST_POINTS = 1000
"""In one list: more make no table that is read, and minutes of computing."""
STAGES = (0, 1, 2, 3)


def parse_counts(text: str, option: str) -> tuple[int, ...]:
    """The numbers of ranks in `1,2,4`, ascending, each once; none for an empty text. Raises SpecError with everything that is no number from 1."""
    numbers, wrong = _numbers(text)
    fix = "give numbers from 1 with commas between them: 1,2,4,8"
    problems = [Problem(what=f"'{part}' is no number of ranks", where=option, fix=fix) for part in dict.fromkeys(wrong)]
    problems += [Problem(what=f"{number:,} is no number of ranks", where=option, fix=fix) for number in numbers if not 1 <= number <= MOST_RANKS]
    if len(set(numbers)) > MOST_POINTS:
        problems.append(Problem(what=f"{len(set(numbers)):,} numbers of ranks are more than {MOST_POINTS:,}", where=option, fix="give fewer, such as 1,2,4,8"))
    if problems:
        raise SpecError(problems)
    return tuple(sorted(set(numbers)))


def require_given(texts: Mapping[str, str], tolerance: float | None) -> None:
    """`texts`: lists of numbers as the command line gave them.

    Raises SpecError for those that hold nothing, as where a shell's variable is not set, and for a tolerance that is no number.
    """
    fix = "give numbers with commas between them, or leave it out"
    problems = [Problem(what="there is no number in it", where=f"--{name}", fix=fix) for name, text in texts.items() if not text.strip()]
    if tolerance is not None and not math.isfinite(tolerance):
        problems.append(Problem(what=f"{tolerance} is no distance of losses", where="--tolerance", fix="give a number from 0, such as 1e-5"))
    if problems:
        raise SpecError(problems)


def parse_stages(text: str) -> tuple[int, ...]:
    """The ZeRO stages in `0,2`, ascending, each once; none for an empty text. Raises SpecError with everything that is none."""
    numbers, wrong = _numbers(text)
    unknown = [*wrong, *(str(number) for number in numbers if number not in STAGES)]
    if unknown:
        raise SpecError([Problem(what=f"'{part}' is no ZeRO stage", where="--stages", fix="give 0, 1, 2 or 3: --stages 0,2") for part in unknown])
    return tuple(sorted(set(numbers)))


def parse_grid(ranks: str, stages: str, option: str = "--ranks") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both lists, the first one given by `option`. Raises SpecError with the mistakes of both."""
    problems: list[Problem] = []
    found: list[tuple[int, ...]] = []
    for text, parse in ((ranks, lambda text: parse_counts(text, option)), (stages, parse_stages)):
        try:
            found.append(parse(text))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    return found[0], found[1]


def _numbers(text: str) -> tuple[list[int], list[str]]:
    """(whole numbers, what is none)."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    is_number = {part: part.removeprefix("-").isascii() and part.removeprefix("-").isdigit() and len(part) < 12 for part in parts}
    return [int(part) for part in parts if is_number[part]], [part for part in parts if not is_number[part]]
