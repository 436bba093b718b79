"""The run that `ftlaunch profile` trains: the spec's own, cut to a warm-up and the updates that are recorded."""

from __future__ import annotations

import dataclasses

from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import ProfilingSection
from launcher.memory.pilot import pilot_spec

MOST_RANKS = 16
"""Ranks that record where none are named: a trace of a real model is some hundred megabytes."""


def profile_spec(resolved: ResolvedSpec, *, warmup: int, updates: int, ranks: tuple[int, ...], memory: bool) -> ResolvedSpec:
    """`resolved` with so many updates, the last `updates` of which are recorded on `ranks`; nothing is evaluated, stopped early or saved on the way."""
    cut = pilot_spec(resolved, warmup + updates)
    spec = dataclasses.replace(
        cut.spec,
        logging=dataclasses.replace(cut.spec.logging, phases=True, report_to=()),
        profiling=ProfilingSection(updates=updates, start_update=warmup + 1, ranks=ranks, memory=memory),
    )
    return dataclasses.replace(cut, spec=spec)


def chosen_ranks(text: str, world_size: int) -> tuple[int, ...]:
    """The ranks that record: `all`, numbers and spans like 0,4-7; empty: all of them, or MOST_RANKS spread evenly over more.

    Raises SpecError for anything else, and for a rank that the run does not have.
    """
    if not text:
        return tuple(sorted({place * world_size // min(world_size, MOST_RANKS) for place in range(min(world_size, MOST_RANKS))}))
    if text == "all":
        return tuple(range(world_size))
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise SpecError(f"{part.strip() or text!r} names no rank", where="--ranks", fix="all, or numbers and spans such as 0,4-7")
        low, high = int(first), int(last) if dash else int(first)
        if low > high or high >= world_size:
            raise SpecError(f"{part.strip()} is not among the ranks 0 to {world_size - 1} of this run", where="--ranks", fix="name ranks that it has, or all")
        found.update(range(low, high + 1))
    return tuple(sorted(found))
