"""Rules about the section profiling: updates that the run has, on ranks that it has."""

from __future__ import annotations

from collections.abc import Iterator

from ftcore.spec.errors import Problem
from ftcore.spec.sections import Spec
from launcher.rules.rule import Findings, Rule
from launcher.schema_check import Found
from launcher.spec_source import Draft

_KEYS = ("start_update", "ranks", "memory")


def check_ranks(spec: Spec, world_size: int) -> Iterator[Found]:
    """A problem for the profiled ranks that a run of `world_size` ranks does not have."""
    missing = [rank for rank in spec.profiling.ranks if rank >= world_size]
    if spec.profiling.updates and missing:
        what = f"there is no rank {missing[0]} in a run of {world_size} ranks"
        fix = f"use ranks 0 to {world_size - 1}" if world_size > 1 else "use rank 0"
        yield Found(("profiling", "ranks"), Problem(what=what, fix=fix))


def _keys(spec: Spec, draft: Draft) -> Findings:
    profiling = spec.profiling
    # Given as 0, it turns profiling off and leaves the rest for later.
    for name in _KEYS if not profiling.updates and not draft.given("profiling.updates") else ():
        if draft.given(f"profiling.{name}"):
            what = f"{name} has no effect without profiling.updates"
            yield Problem(what=what, where=f"profiling.{name}", fix="give profiling.updates 1 or more, or remove it")
    if profiling.updates and not profiling.ranks:
        yield Problem(what="no rank records anything", where="profiling.ranks", fix="name at least one, or leave the key out")


def _in_the_run(spec: Spec, draft: Draft) -> Findings:
    profiling, total = spec.profiling, spec.train.max_steps
    if not profiling.updates or total is None or profiling.start_update + profiling.updates - 1 <= total:
        return
    first, left = profiling.start_update, total - profiling.start_update + 1
    what = f"a run of {total} updates does not have updates {first} to {first + profiling.updates - 1}"
    if draft.given("profiling.start_update") and profiling.updates <= total:
        yield Problem(what=what, where="profiling.start_update", fix=f"give start_update {total - profiling.updates + 1} or less")
    else:
        fix = f"give {left} or less, or an earlier start_update" if left > 0 else "give an earlier start_update"
        yield Problem(what=what, where="profiling.updates", fix=fix)


PROFILING_RULES = (
    Rule(("profiling",), _keys),
    Rule(("profiling", "train.max_steps"), _in_the_run),
)
