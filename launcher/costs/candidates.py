"""The ways to run that are weighed: ranks, ZeRO stage, and what else it takes to fit; each with its speed and how far off that may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import ResolvedSpec
from launcher.costs.measured import MeasuredSpeed
from launcher.memory.accelerators import Accelerator
from launcher.memory.capacity import Capacity
from launcher.memory.choices import Choice, apply, choice_of, ways
from launcher.memory.search import Search
from launcher.simulation.point import SimulatedPoint
from launcher.simulation.points import point_of
from launcher.simulation.setting import Setting
from launcher.simulation.sized import hosts_of
from launcher.simulation.timing import is_of

MOST_RANKS = 100_000
USUAL_RANKS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run that fits, and how fast it is."""

    ranks: int
    hosts: int
    stage: int
    label: str
    """What else is chosen, in words."""
    changes: dict[str, str]
    """Key -> value over the spec, but for the hosts."""
    updates: int
    update_s: float
    """With its share of the evaluations."""
    low_s: float
    high_s: float
    """The same, where the speed is as far off as it may be."""
    supervised_tokens: float
    """Of the whole run."""
    origin: str
    """simulated, measured, or simulated from a measured speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """A number of ranks that nothing fits on."""

    ranks: int
    why: str


def parse_ranks(text: str) -> tuple[int, ...]:
    """The numbers of `8,16,32`, ascending. Raises SpecError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 7 and 0 < int(part) <= MOST_RANKS for part in parts):
        raise SpecError(f"'{text}' are no numbers of ranks", where="--ranks", fix="write them as in 8,16,32")
    return tuple(sorted({int(part) for part in parts}))


def usual_ranks(resolved: ResolvedSpec, accelerator: Accelerator, measured: Sequence[MeasuredSpeed]) -> tuple[int, ...]:
    """What is weighed where nobody said: the spec's own ranks, those that were measured, and powers of two, as far as an update has samples for them."""
    own = resolved.world_size
    samples = resolved.spec.batch.global_batch_size or USUAL_RANKS[-1]
    usual = () if accelerator.is_host else USUAL_RANKS
    return tuple(sorted({own, *(speed.ranks for speed in measured), *(each for each in usual if each <= max(own, samples))}))


def candidates(setting: Setting, capacity: Capacity, ranks: Sequence[int], measured: Sequence[MeasuredSpeed]) -> tuple[list[Candidate], list[Unfit]]:
    """Every way that fits, by ranks and stage, and why others don't."""
    found: list[Candidate] = []
    unfit: list[Unfit] = []
    for each in ranks:
        here, why = _on(setting, capacity, each, measured)
        found += here
        unfit += [] if here else [Unfit(ranks=each, why=why)]
    return found, unfit


def _on(setting: Setting, capacity: Capacity, ranks: int, measured: Sequence[MeasuredSpeed]) -> tuple[list[Candidate], str]:
    """The ways on so many ranks; without one, why."""
    resolved = dataclasses.replace(setting.resolved, hosts=hosts_of(ranks, setting.gpus_per_node))
    room = _room(capacity, resolved)
    if measured:
        return _by_measured(setting, resolved, room, measured)
    search = Search(resolved, setting.shape, room, setting.accelerator)
    found: list[Candidate] = []
    why = ""
    for is_offloaded in (False, True):
        for way in ways(resolved.spec, quantise=False):
            if (way.offload_optimizer != "none" or way.offload_param != "none") is not is_offloaded or way.base != ways(resolved.spec, quantise=False)[0].base:
                continue
            option, lacks = search.best_of(way)
            why = why or lacks
            if option is not None and not option.untested:
                found.append(_candidate(setting, resolved, option.choice, option.changes, None))
        if found:
            break
    return found, why


def _by_measured(setting: Setting, resolved: ResolvedSpec, room: Capacity, measured: Sequence[MeasuredSpeed]) -> tuple[list[Candidate], str]:
    """The spec as it stands, in the stages that were measured; a number of ranks that was not is simulated from the nearest that was."""
    own = choice_of(resolved.spec)
    search = Search(resolved, setting.shape, room, setting.accelerator)
    found: list[Candidate] = []
    why = ""
    for stage in sorted({speed.stage for speed in measured}):
        choice = dataclasses.replace(own, way=dataclasses.replace(own.way, stage=stage))
        exact = next((speed for speed in reversed(measured) if (speed.ranks, speed.stage) == (resolved.world_size, stage)), None)
        short = [each for each in search.lacks(choice) if each.is_error] if exact is None else []
        if short:
            why = why or short[0].what
            continue
        near = exact or min((speed for speed in measured if speed.stage == stage), key=lambda speed: abs(_ratio(speed.ranks, resolved.world_size)))
        changes = {"zero.stage": str(stage)} if stage != own.way.stage else {}
        found.append(_candidate(setting, resolved, choice, changes, near))
    return found, why


def _ratio(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


def _candidate(setting: Setting, resolved: ResolvedSpec, choice: Choice, changes: dict[str, str], near: MeasuredSpeed | None) -> Candidate:
    chosen = dataclasses.replace(setting, resolved=apply(resolved, choice), anchors=(near.anchor,) if near is not None else ())
    point = point_of(chosen, resolved.world_size, choice.way.stage)
    off, origin = point.high_s / point.update_seconds - 1, "simulated"
    if near is not None:
        off = max(off, near.spread)
        is_measured = is_of(chosen, near.anchor, resolved.world_size, choice.way.stage)
        origin = "measured" if is_measured else f"simulated from {near.ranks} measured"
    update_s = point.total_s / point.updates
    return Candidate(
        ranks=resolved.world_size,
        hosts=len(resolved.hosts),
        stage=choice.way.stage,
        label=_label(choice),
        changes=changes,
        updates=point.updates,
        update_s=update_s,
        low_s=update_s / (1 + off),
        high_s=update_s * (1 + off),
        supervised_tokens=_supervised(point),
        origin=origin,
    )


def _label(choice: Choice) -> str:
    again = {"none": "", "full": ", all layers recomputed"}.get(choice.recomputed, f", recomputed {choice.recomputed}")
    return f"{choice.way.label}{again}, {choice.micro_batch_tokens:,} tokens a micro-step"


def _supervised(point: SimulatedPoint) -> float:
    return point.updates * point.supervised_tokens_per_s * point.update_seconds


def _room(capacity: Capacity, resolved: ResolvedSpec) -> Capacity:
    """The room on hosts like those that were looked at."""
    memory = next(iter(capacity.host_bytes.values()), None)
    device = capacity.device_bytes
    if capacity.accelerator is not None and capacity.is_shared:
        device = (memory or capacity.accelerator.memory_bytes) // max(host.slots for host in resolved.hosts)
    return dataclasses.replace(capacity, device_bytes=device, host_bytes={host.name: memory for host in resolved.hosts}, disk_bytes=None)
