"""What a run has cost so far, attempt by attempt, and what the rest of it will take. Time between attempts costs nothing and is told apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ftcore.spec.run_record import Attempt, Covered, RunRecord, Totals, attempts, covered, lines_by_attempt, number, totals

BLOCKS = 5
"""Parts of the newest attempt whose speeds are compared: the slowest and the fastest bound what is still to come."""
MOST_LINES = 500
"""The newest lines, which speeds are of."""
FEW_LINES = 10
LEAST_SPREAD = 0.2
WARM_UP_LINES = 1
"""Lines of an attempt that hold its slow first updates and the evaluation before them; left out where others are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCost:
    """One launch. Costs are None without a price."""

    number: int
    ranks: int
    wall_s: float
    start_s: float | None
    """From the launch to its first update; None: the events don't tell."""
    device_hours: float
    cost: float | None
    updates: int
    """Trained and kept."""
    redone_updates: int
    """Trained beyond the last whole checkpoint, and trained again by a later attempt."""
    redone_s: float
    """What those took, with evaluations and saves between them; by the attempt's mean update where nothing tells."""
    how_ended: str
    downtime_s: float
    """Since the attempt before ended; nothing is counted for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is still to come, at the speed of the newest attempt with its evaluations and saves."""

    updates: int
    ranks: int
    seconds: float
    low_s: float
    high_s: float
    device_hours: float
    cost: float | None
    low_cost: float | None
    high_cost: float | None
    ends_at: float
    """Seconds since the epoch, if it goes on at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The cost of a run."""

    totals: Totals
    attempts: tuple[AttemptCost, ...]
    lost_s: float
    """Of updates trained twice; in the device hours."""
    lost_cost: float | None
    downtime_s: float
    energy_kwh: float | None
    """None where the devices don't tell."""
    total_updates: int
    rest: Rest | None
    """None: everything is trained, or no update is logged yet."""
    currency: str

    @property
    def done(self) -> int:
        """Updates done."""
        return self.totals.updates


def priced(record: RunRecord, price: float | None, currency: str | None) -> RunRecord:
    """The record with another price of a device for an hour, or another currency; None leaves what the spec says."""
    spec = dict(record.resolved.get("spec") or {})
    hardware = dict(spec.get("hardware") or {})
    hardware |= {"price_per_hour": price} if price is not None else {}
    hardware |= {"currency": currency} if currency else {}
    return dataclasses.replace(record, resolved={**record.resolved, "spec": {**spec, "hardware": hardware}})


def run_cost(record: RunRecord, *, now: float, is_over: bool = False) -> RunCost:
    """What a run has cost and will cost; `is_over`: nothing more comes; `now`: seconds since the epoch, from which a run that stands still would go on."""
    launches = attempts(record)
    summed = totals(record)
    price = summed.cost / summed.device_hours if summed.cost is not None and summed.device_hours > 0 else None
    each = [_attempt(record, launch, before, price) for launch, before in zip(launches, [None, *launches], strict=False)]
    last = record.updates[-1] if record.updates else {}
    total = int(number(last, "total_updates"))
    lost = sum(one.redone_s for one in each)
    return RunCost(
        totals=summed,
        attempts=tuple(each),
        lost_s=lost,
        lost_cost=None if price is None else price * sum(one.redone_s * one.ranks for one in each) / 3600,
        downtime_s=sum(one.downtime_s for one in each),
        energy_kwh=None if summed.energy_joules is None else summed.energy_joules / 3.6e6,
        total_updates=total,
        rest=None if is_over else _rest(record, launches, total - summed.updates, price, now),
        currency=summed.currency,
    )


def _attempt(record: RunRecord, launch: Attempt, before: Attempt | None, price: float | None) -> AttemptCost:
    hours = launch.device_s / 3600
    begun = next((number(event, "time") for event in record.events if event["event"] == "loop_start" and event.get("attempt") == launch.number), 0.0)
    # An attempt whose updates were all lost has no line left to say how long one took.
    an_update = launch.train_s / launch.updates if launch.updates else _mean_update(record)
    return AttemptCost(
        number=launch.number,
        ranks=launch.world_size,
        wall_s=launch.wall_s,
        start_s=begun - launch.started if begun > launch.started > 0 else None,
        device_hours=hours,
        cost=None if price is None else price * hours,
        updates=launch.updates,
        redone_updates=launch.redone_updates,
        redone_s=min(launch.wall_s, _redone_s(record, launch) or launch.redone_updates * an_update),
        how_ended=launch.how_ended,
        downtime_s=max(0.0, launch.started - (before.started + before.wall_s)) if before is not None and before.started > 0 else 0.0,
    )


def _redone_s(record: RunRecord, launch: Attempt) -> float:
    """What the attempt's updates took that were trained again, as whoever trained them again told; 0: nobody did."""
    told = [event for event in record.events if event["event"] == "done_again" and event.get("trained_by") == launch.number]
    return sum(number(event, "seconds") for event in told)


def _mean_update(record: RunRecord) -> float:
    parts = [covered(line) for line in record.updates]
    updates = sum(part.updates for part in parts)
    return sum(part.train_s for part in parts) / updates if updates else 0.0


def _rest(record: RunRecord, launches: Sequence[Attempt], left: int, price: float | None, now: float) -> Rest | None:
    """At the speed of the newest attempt that has logged an update, and of those before it on as many ranks."""
    by_attempt = lines_by_attempt(record)
    newest = next((launch for launch in reversed(launches) if by_attempt.get(launch.number)), None)
    if newest is None or left <= 0:
        return None
    lines = by_attempt[newest.number]
    alike = [launch.number for launch in launches if launch.world_size == newest.world_size]
    settled = [covered(line) for each in alike for line in by_attempt.get(each, [])[WARM_UP_LINES:]]
    middle, low, high = _speeds(settled[-MOST_LINES:] or [covered(line) for line in lines])
    hours = left * middle * newest.world_size / 3600
    costs = [None if price is None else price * hours * each / middle for each in (middle, low, high)]
    return Rest(
        updates=left,
        ranks=newest.world_size,
        seconds=left * middle,
        low_s=left * low,
        high_s=left * high,
        device_hours=hours,
        cost=costs[0],
        low_cost=costs[1],
        high_cost=costs[2],
        ends_at=now + left * middle,
    )


def _speeds(parts: Sequence[Covered]) -> tuple[float, float, float]:
    """Wall seconds an update: (mean, of the fastest block, of the slowest one); at least LEAST_SPREAD apart from the mean where there are few lines."""
    size = max(1, -(-len(parts) // BLOCKS))
    blocks = [parts[at : at + size] for at in range(0, len(parts), size)]
    means = [sum(part.wall_s for part in block) / max(1, sum(part.updates for part in block)) for block in blocks]
    middle = max(1e-9, sum(part.wall_s for part in parts) / max(1, sum(part.updates for part in parts)))
    off = LEAST_SPREAD if len(parts) < FEW_LINES else 0.0
    return middle, min(*means, middle, middle / (1 + off)), max(*means, middle, middle * (1 + off))
