"""What goes with what: one table, from which validation, the plan, warnings and docs/compatibility.md are made.

A combination is refused when an entry of REFUSED matches it, untested when one of UNTESTED does, and works otherwise. "Works" is shown
for every cell of the tables PLANES by tests/ranks/test_compatibility.py; a combination is as good as the worst of its cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

from ftcore.spec.errors import Problem
from ftcore.spec.sections import Spec
from launcher.combinations.combination import AXIS, Combination, Value, combination_of
from launcher.combinations.table import REFUSED, REFUSED_WORD, UNTESTED, UNTESTED_WORD, WORKS, Entry, can_be_said, with_own_type

__all__ = ["REFUSED_WORD", "SHOWN_BY", "UNTESTED_WORD", "WORKS", "Verdict", "alternatives", "judge", "problem_of", "verdict"]

MOST_CHANGED = 4
"""Keys that a way out may change where what is met leads nowhere."""
SHOWN_BY = "tests/ranks/test_compatibility.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a combination."""

    word: str
    """works, refused or untested."""
    problems: tuple[Problem, ...] = ()
    """Why it is refused, each with alternatives that are not."""
    warnings: tuple[str, ...] = ()
    """Why it is untested."""

    @property
    def line(self) -> str:
        """For the plan."""
        if self.word == WORKS:
            return f"works: every pair of its parts trains and resumes in {SHOWN_BY}"
        return f"{self.word}: {'; '.join([*(problem.what for problem in self.problems), *self.warnings])}"


def verdict(spec: Spec) -> Verdict:
    """The table's word on a spec, resolved or not."""
    return judge(combination_of(spec))


def judge(combination: Combination) -> Verdict:
    """The table's word on a combination."""
    values = combination.values()
    refusals = [entry for entry in REFUSED if entry.matches(values)]
    warnings = tuple(entry.reason.format(**values) for entry in UNTESTED if entry.matches(values))
    if refusals:
        return Verdict(word=REFUSED_WORD, problems=tuple(problem_of(entry, combination) for entry in refusals), warnings=warnings)
    return Verdict(word=UNTESTED_WORD if warnings else WORKS, warnings=warnings)


def problem_of(entry: Entry, combination: Combination, *, impossible: tuple[Entry, ...] = ()) -> Problem:
    """The mistake that an entry of REFUSED sees in `combination`, with the nearest ways out; `impossible`: what this machine can't do besides."""
    return Problem(what=entry.reason.format(**combination.values()), where=entry.where, fix=_propose(alternatives(entry, combination, impossible)))


def alternatives(entry: Entry, combination: Combination, impossible: tuple[Entry, ...] = ()) -> list[dict[str, Value]]:
    """The smallest changes (axis -> value) that lead out of `entry` to combinations that are not refused, and not untested for a new reason.

    Each changes an axis of the entry, and others only when no single change is enough, since another entry matches too; then one is named.
    """
    values = combination.values()
    met = {axis for other in REFUSED if other.matches(values) for axis in other.when}
    near = [*entry.when, *(axis for axis in AXIS if axis in met and axis not in entry.when)]
    barred = (*REFUSED, *impossible, *(other for other in UNTESTED if not other.matches(values)))
    # A change may lead into another entry, out of which only an axis leads that no entry has met yet.
    everything = [*near, *(axis for axis in AXIS if axis not in near)]
    for axes, most in ((near, len(near)), (everything, MOST_CHANGED)):
        for size in range(1, most + 1):
            chosen = [names for names in combinations(axes, size) if set(names) & set(entry.when)]
            found = [change for names in chosen for change in _changes(names, combination) if _is_free(with_own_type(values | change), barred)]
            if found:
                return found if size == 1 else found[:1]
    return []


def _changes(axes: tuple[str, ...], combination: Combination) -> Iterator[dict[str, Value]]:
    """Every way to give all of `axes` other values that a spec can be told to have."""
    others = [[value for value, words in AXIS[axis].words.items() if words and value != getattr(combination, axis)] for axis in axes]
    return (dict(zip(axes, values, strict=True)) for values in product(*others))


def _is_free(values: dict[str, Value], barred: tuple[Entry, ...]) -> bool:
    return can_be_said(values) and not any(entry.matches(values) for entry in barred)


def _propose(changes: list[dict[str, Value]]) -> str:
    """`use zero.stage: 1, 2 or 3, or train.precision: fp32`: the changes of an axis together."""
    by_axis: dict[tuple[str, ...], list[str]] = {}
    for change in changes:
        by_axis.setdefault(tuple(change), []).append(" with ".join(AXIS[axis].words[value] for axis, value in change.items()))
    return "use " + ", or ".join(_joined(texts) for texts in by_axis.values())


def _joined(texts: list[str]) -> str:
    """What all begin with (`zero.stage: `) once, then `1, 2 or 3`."""
    key = texts[0].partition(": ")[0] + ": "
    if all(text.startswith(key) for text in texts):
        texts = [texts[0], *(text.removeprefix(key) for text in texts[1:])]
    *most, last = texts
    return f"{', '.join(most)} or {last}" if most else last
