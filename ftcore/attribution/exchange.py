"""One rank's stretch as a row of numbers, as long on every rank, and all ranks' rows as what they tell.

A row: the values to sum, the facts (FACTS), then `came`, `waits_from` and `waited` by slot. Collectives without a slot are charged like those of their
region that have one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ftcore.attribution.charge import charge_waits, clock_offsets, excess, shares_of_phases
from ftcore.attribution.phases import BACKWARD, BUSY, DATA_WAIT, EVALUATING, FORWARD, OPTIMIZER, OTHER, REGIONS, SAVING, TRAINING
from ftcore.attribution.timeline import Stretch
from ftcore.attribution.told import RankPhases, Told, ToldPhases
from ftcore.spec.run_lines import PHASES

Floats = npt.NDArray[np.float64]
LEAST_SLOTS, MOST_SLOTS = (32, 8, 8), (1024, 256, 256)
"""By region; a slot is three numbers of a row."""
ROOM = 1.25
"""Slots for so many times the collectives of the largest stretch so far."""
IN_TRAINING = (DATA_WAIT, FORWARD, BACKWARD, OPTIMIZER, OTHER)

COST, UPDATES, SECONDS, ELSEWHERE = range(4)
SPILLED = slice(4, 4 + REGIONS)
KEPT = slice(SPILLED.stop, SPILLED.stop + REGIONS)
STARTED = slice(KEPT.stop, KEPT.stop + REGIONS)
DONE = slice(STARTED.stop, STARTED.stop + len(BUSY))
HELD = slice(DONE.stop, DONE.stop + len(BUSY))
FACTS = HELD.stop
"""So many numbers; seconds by region of collectives without and with a slot, collectives started, seconds of each phase of BUSY, what was held up."""


def to_row(stretch: Stretch, values: Sequence[float], *, cost: float, updates: int) -> Floats:
    """float64 [values + FACTS + 3 x slots]."""
    kept, spilled = zip(*stretch.blocked, strict=True)
    facts = (cost, updates, stretch.seconds, stretch.elsewhere, *spilled, *kept, *stretch.counts, *stretch.busy, *stretch.held_up)
    return np.array([*values, *facts, *stretch.came, *stretch.waits_from, *stretch.waited], dtype=np.float64)


def from_rows(rows: Floats, values: int, own: Stretch, *, hosts: Sequence[str], clocks: Sequence[str]) -> tuple[Told, list[int]]:
    """What the rows [W, n] tell, and the most collectives that any rank started, by region. `own`: this rank's stretch, as one of the rows has it."""
    facts = rows[:, values : values + FACTS]
    slots = rows[:, values + FACTS :].reshape(len(rows), 3, -1)
    idle_W, caused_WR = _waits(facts, slots, own, clocks)
    more_WP = excess(facts[:, DONE])
    ranks = tuple(_rank(rank, hosts[rank], facts[rank], float(idle_W[rank]), caused_WR[rank], more_WP[rank]) for rank in range(len(rows)))
    told = Told(sums=sums_of(rows[:, :values]), phases=ToldPhases(ranks=ranks, updates=int(facts[0, UPDATES])))
    return told, [int(most) for most in facts[:, STARTED].max(axis=0)]


def sums_of(rows: Floats) -> list[float]:
    """Sums over the ranks of [W, n], in rank order, so that they are the same on each."""
    return [float(total) for total in np.add.reduce(rows, axis=0)]


def more_slots(capacities: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """Slots by region once stretches with so many collectives have been seen."""
    return tuple(max(have, min(most, int(ROOM * count) + 1)) for have, count, most in zip(capacities, counts, MOST_SLOTS, strict=True))


def _waits(facts: Floats, slots: Floats, own: Stretch, clocks: Sequence[str]) -> tuple[Floats, Floats]:
    """(idle [W], caused [W, regions]) in seconds, of all collectives of all ranks."""
    idle_W, caused_WR = np.zeros(len(facts)), np.zeros((len(facts), REGIONS))
    used = _used_slots(facts, own.capacities)
    synchronising = [slot for slot in np.concatenate(used) if own.synchronises[slot]]
    ends = (slots[:, 1] + slots[:, 2])[:, synchronising]
    offsets = clock_offsets(ends, slots[:, 2][:, synchronising], clocks) if synchronising else np.zeros(len(clocks))
    if len(set(clocks)) > 1 and not synchronising:
        return idle_W, caused_WR
    for region, which in enumerate(used):
        idle_WS, caused_WS = charge_waits(slots[:, 0][:, which], slots[:, 1][:, which], slots[:, 2][:, which], offsets) if len(which) else _NOTHING
        kept_W, idle = facts[:, KEPT][:, region], idle_WS.sum(axis=1)
        share_W = np.divide(idle, kept_W, out=np.zeros_like(kept_W), where=kept_W > 0)
        spilled_W = share_W * facts[:, SPILLED][:, region]
        idle_W += idle + spilled_W
        caused = caused_WS.sum(axis=1)
        caused_WR[:, region] = caused * (1.0 + spilled_W.sum() / caused.sum()) if caused.sum() > 0 else 0.0
    return idle_W, caused_WR


_NOTHING = (np.zeros((1, 0)), np.zeros((1, 0)))


def _used_slots(facts: Floats, capacities: Sequence[int]) -> list[npt.NDArray[np.int64]]:
    """Slots by region that hold the same collective on every rank; none of a region where the ranks started different numbers of them."""
    started = facts[:, STARTED].astype(np.int64)
    used, first = [], 0
    for region, capacity in enumerate(capacities):
        count = int(started[0, region]) if (started[:, region] == started[0, region]).all() else 0
        used.append(np.arange(first, first + min(count, capacity), dtype=np.int64))
        first += capacity
    return used


def _rank(rank: int, host: str, facts: Floats, idle: float, caused_R: Floats, more_P: Floats) -> RankPhases:
    blocked = float(facts[ELSEWHERE] + facts[SPILLED].sum() + facts[KEPT].sum())
    seconds = {name: float(done) for name, done in zip(BUSY, facts[DONE], strict=True)} | {"communication": max(0.0, blocked - idle), "idle": idle}
    caused = {"checkpoint": float(caused_R[SAVING]), "evaluation": float(caused_R[EVALUATING])}
    in_training = shares_of_phases(more_P[list(IN_TRAINING)])
    caused |= {BUSY[phase]: float(share * caused_R[TRAINING]) for phase, share in zip(IN_TRAINING, in_training, strict=True)}
    caused = {phase: lost for phase, lost in caused.items() if lost > 0}
    return RankPhases(
        rank=rank,
        host=host,
        phases={name: seconds[name] for name in PHASES},
        phase_seconds=float(facts[SECONDS]),
        caused_idle_seconds=sum(caused.values()),
        late_phase=max(caused, key=lambda phase: caused[phase]) if caused else "",
        caused_by_phase=caused,
        held_up={name: float(held) for name, held in zip(BUSY, facts[HELD], strict=True)},
        cost=float(facts[COST]),
    )
