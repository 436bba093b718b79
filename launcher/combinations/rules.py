"""Rules between keys of a spec: what of the table of combinations is refused."""

from __future__ import annotations

from functools import partial

from ftcore.spec.sections import Spec
from launcher.combinations.combination import AXIS, combination_of
from launcher.combinations.table import REFUSED, Entry
from launcher.combinations.verdict import problem_of
from launcher.rules.precision import half_is_possible
from launcher.rules.rule import Findings, Rule
from launcher.spec_source import Draft

HALF = Entry(when={"precision": ("fp16",)}, reason="")
"""What is not proposed where it can't run."""


def _refused(entry: Entry, spec: Spec, draft: Draft) -> Findings:
    combination = combination_of(spec)
    if entry.matches(combination.values()):
        yield problem_of(entry, combination, impossible=() if half_is_possible(spec) else (HALF,))


COMBINATION_RULES = tuple(Rule(tuple(key for axis in entry.when for key in AXIS[axis].keys), partial(_refused, entry)) for entry in REFUSED if not entry.by_key)
"""One for each entry, so that a mistake in one key hides only what is about it."""
