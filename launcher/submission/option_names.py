"""Mistakes of a submission in the words of its own command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ftcore.spec.errors import Problem
from launcher.submission.elements import full_key
from launcher.submission.scheduler_rules import NO_SLOTS


def in_options_words(problems: Iterable[Problem], arrays: tuple[str, ...]) -> list[Problem]:
    """The problems, those of a value that --array set by that option's name, and without what only follows from another one at the same place."""
    found = list(problems)
    elsewhere = {problem.where for problem in found if problem.what != NO_SLOTS}
    keys = [full_key(text.partition("=")[0].strip()) for text in arrays]
    return [_named(problem, keys) for problem in found if problem.what != NO_SLOTS or problem.where not in elsewhere]


def _named(problem: Problem, keys: list[str]) -> Problem:
    # Of a value that both options give, the text names --set.
    if problem.file != "--set" or "--set" in problem.what:
        return problem
    is_arrays = any(problem.where == key or problem.where.startswith(f"{key}.") for key in keys)
    return replace(problem, file="--array") if is_arrays else problem
