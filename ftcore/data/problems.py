"""Mistakes in rows: given a place, and reported together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftcore.spec.errors import DataError, Problem

SHOWN_PROBLEMS = 20
"""A file with a systematic mistake has one in each row; the first ones are enough to see it."""


def placed(error: DataError, *, file: str, row: int, line: int | None) -> list[Problem]:
    """The problems of `error`, each saying which row of which file it is about."""
    return [replace(problem, file=file, line=line, where=f"row {row}") for problem in error.problems]


def stop_on(problems: Sequence[Problem], file: str) -> None:
    """Raises DataError with the first problems and the number of the others; does nothing without problems."""
    if not problems:
        return
    shown = list(problems[:SHOWN_PROBLEMS])
    hidden = len(problems) - len(shown)
    if hidden:
        shown.append(Problem(what=f"and {hidden} more mistakes like these in this file", file=file))
    raise DataError(shown)
