"""The lists of numbers that `ftlaunch scale` takes: ranks and stages."""

from __future__ import annotations

from ftcore.spec.errors import Problem, SpecError

MOST_RANKS = 100_000
STAGES = (0, 1, 2, 3)


def parse_counts(text: str, option: str) -> tuple[int, ...]:
    """The numbers of ranks in `1,2,4`, ascending, each once; none for an empty text. Raises SpecError with everything that is no number from 1."""
    numbers, wrong = _numbers(text)
    fix = "give numbers from 1 with commas between them: 1,2,4,8"
    problems = [Problem(what=f"'{part}' is no number of ranks", where=option, fix=fix) for part in dict.fromkeys(wrong)]
    problems += [Problem(what=f"{number:,} is no number of ranks", where=option, fix=fix) for number in numbers if not 1 <= number <= MOST_RANKS]
    if problems:
        raise SpecError(problems)
    return tuple(sorted(set(numbers)))


def parse_stages(text: str) -> tuple[int, ...]:
    """The ZeRO stages in `0,2`, ascending, each once; none for an empty text. Raises SpecError with everything that is none."""
    numbers, wrong = _numbers(text)
    unknown = [*wrong, *(str(number) for number in numbers if number not in STAGES)]
    if unknown:
        raise SpecError([Problem(what=f"'{part}' is no ZeRO stage", where="--stages", fix="give 0, 1, 2 or 3: --stages 0,2") for part in unknown])
    return tuple(sorted(set(numbers)))


def parse_grid(ranks: str, stages: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both lists. Raises SpecError with the mistakes of both."""
    problems: list[Problem] = []
    found: list[tuple[int, ...]] = []
    for text, parse in ((ranks, lambda text: parse_counts(text, "--ranks")), (stages, parse_stages)):
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
