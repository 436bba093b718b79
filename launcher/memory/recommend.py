"""`ftlaunch plan --recommend`: what else would fit, fastest first, and what each way that does not fit lacks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import Spec
from launcher.compatibility import REFUSED_WORD, UNTESTED_WORD, WORKS, verdict
from launcher.memory.accelerators import NAMES, Accelerator
from launcher.memory.capacity import Capacity
from launcher.memory.choices import Choice, Way, apply, assignments, choice_of, rules, sizes, ways
from launcher.memory.cost import Forecast, time_and_cost
from launcher.memory.fit import Shortage, gib, shortages
from launcher.memory.items import Ledger
from launcher.memory.ledger import build_ledger
from launcher.memory.lengths import data_lengths
from launcher.memory.shape import ModelShape
from launcher.memory.work import cut_update

TIE = 1.02
"""Times that differ by less than about this factor are taken as equal: the model of time is no finer."""
CHECKED_OPTIONS = 8
"""Ranked options whose spec is checked whole, as a launch would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to run that fits and leaves the margin."""

    choice: Choice
    changes: dict[str, str]
    """Key -> value, over the spec; empty: the spec as it is."""
    ledger: Ledger
    forecast: Forecast
    free_share: float
    """Of a rank's device memory."""
    untested: str = ""
    """Why the combination counts as untested; empty: it is tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A way that is not offered."""

    label: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Everything that was weighed."""

    options: tuple[Option, ...]
    """Best first."""
    rejected: tuple[Rejected, ...]
    own: Choice
    own_shortages: tuple[Shortage, ...]
    """What the spec as it stands lacks; empty: it fits and leaves the margin."""
    capacity: Capacity
    margin: float
    quantises: bool
    """Whether a base in 4 bits was weighed as well."""


Check = Callable[[dict[str, str]], Sequence[Problem]]
"""From changes over the spec to what a launch would refuse of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What every candidate is judged by."""

    resolved: ResolvedSpec
    shape: ModelShape
    capacity: Capacity
    accelerator: Accelerator
    sizes: list[int]
    trial: Callable[[ResolvedSpec], tuple[Ledger, list[Shortage]]]
    forecast: Callable[[ResolvedSpec, Ledger], Forecast]


def recommend(
    resolved: ResolvedSpec, shape: ModelShape, capacity: Capacity, *, quantise: bool | None = None, check: Check | None = None
) -> Recommendation:
    """Weighs every way of `launcher.memory.choices` on `capacity`; `check` is what a launch would say to an option's changes.

    `quantise`: also hold the base in 4 bits; None: for lora and qlora, where such options stand behind all that keep the base whole if the spec does.
    Raises SpecError when the accelerator is not known.
    """
    accelerator = capacity.accelerator
    if accelerator is None or capacity.device_bytes is None:
        fix = f"name it with --gpu or hardware.accelerator: {', '.join(NAMES)}, or NAME:GiB"
        raise SpecError(f"nothing can be recommended: the accelerator is {capacity.device_origin}", where="--recommend", fix=fix)
    spec = resolved.spec
    quantises = spec.method.type == "qlora" or (spec.method.type == "lora" and quantise is not False)
    search = _search(resolved, shape, capacity, accelerator)
    options: list[Option] = []
    rejected: list[Rejected] = []
    for way in ways(spec, quantise=quantises):
        found, why = _best_of(way, search)
        options += [found] if found is not None else []
        rejected += [Rejected(label=way.label, why=why)] if found is None else []
    options.sort(key=lambda option: _rank(option, spec))
    options, refused = _checked(options, check)
    _, own = search.trial(resolved)
    return Recommendation(
        options=tuple(options),
        rejected=(*rejected, *refused),
        own=choice_of(spec),
        own_shortages=tuple(own),
        capacity=capacity,
        margin=spec.hardware.margin,
        quantises=quantises,
    )


def _search(resolved: ResolvedSpec, shape: ModelShape, capacity: Capacity, accelerator: Accelerator) -> _Search:
    lengths = data_lengths(resolved, resolved.spec.data.train)
    # What is on disk is the same whatever is chosen.
    judged = dataclasses.replace(capacity, disk_bytes=None)

    def trial(candidate: ResolvedSpec) -> tuple[Ledger, list[Shortage]]:
        ledger = build_ledger(candidate, shape)
        return ledger, shortages(candidate, ledger, judged)

    def forecast(candidate: ResolvedSpec, ledger: Ledger) -> Forecast:
        return time_and_cost(candidate, shape, ledger, accelerator, lengths)

    rank_tokens = cut_update(resolved.spec, resolved.world_size, lengths).rank_tokens
    return _Search(
        resolved=resolved,
        shape=shape,
        capacity=judged,
        accelerator=accelerator,
        sizes=sizes(resolved, rank_tokens),
        trial=trial,
        forecast=forecast,
    )


def _best_of(way: Way, search: _Search) -> tuple[Option | None, str]:
    """The fastest option of one way that fits; else what the leanest of them lacks."""
    spec = search.resolved.spec
    best: Option | None = None
    lacking = ""
    for rule in rules(spec):
        start = Choice(way=way, recomputed=rule, micro_batch_tokens=search.sizes[0])
        word = verdict(apply(search.resolved, start).spec)
        own = verdict(spec)
        if word.word == REFUSED_WORD or (word.word == UNTESTED_WORD and own.word == WORKS):
            lacking = lacking or "; ".join(dict.fromkeys([*(problem.what for problem in word.problems), *word.warnings]))
            continue
        found, short = _largest(start, search)
        if found is None:
            lacking = _short(short)
            continue
        option = dataclasses.replace(found, untested="; ".join(word.warnings))
        if best is None or _rank(option, spec) < _rank(best, spec):
            best = option
    return best, lacking


def _largest(start: Choice, search: _Search) -> tuple[Option | None, list[Shortage]]:
    """The fastest size of micro-step that fits, for one way and rule; without one, what the smallest lacks. More tokens take more memory."""
    fitting = -1
    low, high = 0, len(search.sizes) - 1
    short: list[Shortage] = []
    while low <= high:
        # The largest first: where memory is no matter it is the only look.
        middle = high if fitting < 0 and high == len(search.sizes) - 1 and low == 0 else (low + high) // 2
        _, found = search.trial(apply(search.resolved, dataclasses.replace(start, micro_batch_tokens=search.sizes[middle])))
        if found:
            short, high = (found, middle - 1)
        else:
            fitting, low = middle, middle + 1
    if fitting < 0:
        return None, short
    options = [_option(dataclasses.replace(start, micro_batch_tokens=size), search) for size in search.sizes[: fitting + 1]]
    kept = [option for option in options if option is not None]
    return min(kept, key=lambda option: _rank(option, search.resolved.spec), default=None), short


def _option(choice: Choice, search: _Search) -> Option | None:
    """The option of a choice; None when it does not fit."""
    candidate = apply(search.resolved, choice)
    ledger, short = search.trial(candidate)
    if short:
        return None
    there = search.capacity.device_bytes or 1
    return Option(
        choice=choice,
        changes=assignments(search.resolved.spec, choice),
        ledger=ledger,
        forecast=search.forecast(candidate, ledger),
        free_share=1 - ledger.device_peak_bytes / there,
    )


def _rank(option: Option, spec: Spec) -> tuple[int, int, int, int, int]:
    """What decides between two options, smaller first: the base kept whole if the spec does, time, changes to the spec, recomputing, memory."""
    is_coarser = int(option.choice.way.base != "whole" and spec.method.type != "qlora")
    time = round(math.log(max(option.forecast.total_s, 1e-9)) / math.log(TIE))
    return is_coarser, time, len(option.changes), int(option.choice.recomputed != "none"), option.ledger.device_peak_bytes


def _short(found: list[Shortage]) -> str:
    """What is short, as in `4.1 GiB over on rank 0, activations 61 %`."""
    parts = []
    for each in found:
        if each.place == "device" and each.is_error:
            parts.append(f"{gib(each.over_bytes)} over on rank 0, {each.items}")
        elif each.place == "device":
            parts.append(f"leaves {-each.over_bytes / each.there_bytes:.1%} of rank 0's memory free, less than the margin; {each.items}")
        else:
            over = f"{gib(each.over_bytes)} over" if each.is_error else f"{each.needed_bytes / each.there_bytes:.0%} used"
            parts.append(f"main memory of the host: {over}, {each.items}")
    return "; ".join(parts)


def _checked(options: list[Option], check: Check | None) -> tuple[list[Option], list[Rejected]]:
    """The best options that a launch would take, and why not the others; none is looked at when there is nothing to ask."""
    if check is None:
        return options, []
    kept: list[Option] = []
    refused: list[Rejected] = []
    for option in options[: CHECKED_OPTIONS + 4]:
        problems = check(option.changes) if option.changes else []
        if problems:
            refused.append(Rejected(label=option.choice.way.label, why=f"refused by the spec: {problems[0].where}: {problems[0].what}"))
        elif len(kept) < CHECKED_OPTIONS:
            kept.append(option)
    return kept, refused
