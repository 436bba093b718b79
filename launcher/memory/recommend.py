"""`ftlaunch plan --recommend`: what else would fit, fastest first, and what each way that does not fit lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.accelerators import NAMES
from launcher.memory.capacity import Capacity
from launcher.memory.choices import Choice, Way, choice_of, ways
from launcher.memory.fit import Shortage
from launcher.memory.search import Option, Search, rank
from launcher.memory.shape import ModelShape

CHECKED_OPTIONS = 8
"""Ranked options whose spec is checked whole, as a launch would."""


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
    trains_all: bool
    """Whether the spec trains all of the model (method.type: full), so that LoRA would take less."""


Check = Callable[[dict[str, str]], Sequence[Problem]]
"""From changes over the spec to what a launch would refuse of it."""


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
    search = Search(resolved, shape, capacity, accelerator)
    options: list[Option] = []
    rejected: list[Rejected] = []
    for way in ways(spec, quantise=quantises):
        found, why = search.best_of(way)
        options += [found] if found is not None else []
        rejected += [Rejected(label=way.label, why=why)] if found is None else []
    options.sort(key=lambda option: rank(option, spec))
    options, idle = _without_idle_offload(options)
    options, refused = _checked(options, check)
    own = search.lacks(choice_of(spec))
    return Recommendation(
        options=tuple(options),
        rejected=(*rejected, *idle, *refused),
        own=choice_of(spec),
        own_shortages=tuple(own),
        capacity=capacity,
        margin=spec.hardware.margin,
        quantises=quantises,
        trains_all=spec.method.type == "full",
    )


def _without_idle_offload(options: list[Option]) -> tuple[list[Option], list[Rejected]]:
    """The options without those whose offload gains nothing: one of the same stage and base that offloads less stands before them."""
    kept: list[Option] = []
    idle: list[Rejected] = []
    for option in options:
        way = option.choice.way
        before = next((each for each in kept if _offloads_less(each.choice.way, way) and option.changes), None)
        if before is None:
            kept.append(option)
        else:
            idle.append(Rejected(label=f"{before.choice.way.label}, and offload", why="fits, but is no faster"))
    return kept, list(dict.fromkeys(idle))


def _offloads_less(one: Way, other: Way) -> bool:
    places = ((one.offload_optimizer, other.offload_optimizer), (one.offload_param, other.offload_param))
    return one != other and (one.stage, one.base) == (other.stage, other.base) and all(mine in ("none", theirs) for mine, theirs in places)


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
