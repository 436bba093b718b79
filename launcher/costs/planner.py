"""The plans of a run at given prices: every way that fits, on demand and on spot hosts, with its time, its price, and whether it meets a deadline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.costs.candidates import Candidate
from launcher.costs.interruptions import DAY_S, Elapsed, Hazard, Work, best_save_steps, broken, unbroken
from launcher.costs.overheads import Overheads
from launcher.costs.prices import Prices

ON_DEMAND, SPOT = "on demand", "spot"
YES, LIKELY, NO = "yes", "likely", "no"
WORTH_A_CHANGE = 1.01
"""Another checkpoint.save_steps is proposed where the spec's own takes so much longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for all plans."""

    prices: Prices
    save_steps: int
    """The spec's checkpoint.save_steps."""
    wait_s: float
    deadline_s: float | None = None
    has_notice: bool = False
    elastic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A number at the expected speed, and where the speed is as far off as it may be."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to run the whole job. Times in seconds."""

    candidate: Candidate
    market: str
    """ON_DEMAND or SPOT."""
    save_steps: int
    """The spec's, or what is better by 1 % at least; 0: at the end only."""
    time_s: Span
    late_s: Span
    """By then 90 % of such runs are done; the same as time_s on demand."""
    interruptions: float
    lost_s: float
    """Work done twice, in the mean."""
    device_hours: Span
    """Hours that are paid for, times ranks."""
    price: Span | None
    """None: the market's price is not known."""
    per_million: float | None
    """Expected price of a million supervised tokens."""
    meets: str | None
    """YES: also when late and slower than expected; LIKELY: in the mean; NO; None: there is no deadline."""
    as_written_s: float | None = None
    """Expected time with the spec's own checkpoint.save_steps, where that is another."""


def plans_of(candidate: Candidate, overheads: Overheads, terms: Terms) -> list[Plan]:
    """The plans of one way: on demand, and on spot hosts where it is known how often they go."""
    found = [_plan(candidate, overheads, terms, ON_DEMAND)]
    if terms.prices.has_spot:
        found.append(_plan(candidate, overheads, terms, SPOT))
    return found


def ordered(plans: Iterable[Plan]) -> list[Plan]:
    """Best first: those that meet the deadline before those that are likely to, then the others; of each the cheapest, without prices the fastest.

    Plans that miss the deadline stand by time, the fastest first.
    """
    return sorted(plans, key=_rank)


def _rank(plan: Plan) -> tuple[int, float, float]:
    place = {YES: 0, None: 0, LIKELY: 1, NO: 2}[plan.meets]
    price = plan.price.expected if plan.price is not None else math.inf
    return (place, plan.time_s.expected, price) if plan.meets == NO else (place, price, plan.time_s.expected)


def _plan(candidate: Candidate, overheads: Overheads, terms: Terms, market: str) -> Plan:
    works = [_work(candidate, overheads, update_s) for update_s in (candidate.update_s, candidate.low_s, candidate.high_s)]
    hazard = hazard_of(candidate.hosts, terms) if market == SPOT else None
    steps = _save_steps(works[0], hazard, terms.save_steps)
    middle, low, high = (_elapsed(work, hazard, steps) for work in works)
    rate = terms.prices.on_demand if market == ON_DEMAND else terms.prices.spot
    hours = [candidate.ranks * each.paid_s / 3600 for each in (middle, low, high)]
    price = None if rate is None else _spread([rate * each for each in hours])
    written = _elapsed(works[0], hazard, terms.save_steps).mean_s if steps != terms.save_steps else None
    return Plan(
        candidate=candidate,
        market=market,
        save_steps=steps,
        time_s=_spread([middle.mean_s, low.mean_s, high.mean_s]),
        late_s=_spread([middle.late_s, low.late_s, high.late_s]),
        interruptions=middle.interruptions,
        lost_s=middle.lost_s,
        device_hours=_spread(hours),
        price=price,
        per_million=None if price is None or not candidate.supervised_tokens else price.expected / candidate.supervised_tokens * 1e6,
        meets=_meets(middle, high, terms.deadline_s),
        as_written_s=written,
    )


def hazard_of(hosts: int, terms: Terms) -> Hazard:
    """What may happen to a run on so many spot hosts."""
    each = (terms.prices.interruptions_per_day or 0.0) / DAY_S
    return Hazard(hosts=hosts, per_host=each, until_replaced_s=terms.wait_s, has_notice=terms.has_notice, elastic=terms.elastic)


def _save_steps(work: Work, hazard: Hazard | None, own: int) -> int:
    """The spec's own checkpoint.save_steps, unless another one is worth a change; without losses to fear: one whose saves hold up no more than 1 %."""
    if hazard is None or hazard.has_notice:
        least = math.ceil(work.stall_s / ((WORTH_A_CHANGE - 1) * work.update_s) - 1e-9)
        return own if own == 0 or own >= least else least if least < work.updates else 0
    best = best_save_steps(work, hazard)
    return own if broken(work, hazard, own).mean_s <= WORTH_A_CHANGE * broken(work, hazard, best).mean_s else best


def _work(candidate: Candidate, overheads: Overheads, update_s: float) -> Work:
    return Work(
        updates=candidate.updates,
        update_s=update_s,
        start_s=overheads.start_s,
        end_s=overheads.write_s + overheads.export_s,
        stall_s=overheads.stall_s,
        write_s=overheads.write_s,
    )


def _elapsed(work: Work, hazard: Hazard | None, save_steps: int) -> Elapsed:
    return unbroken(work, save_steps) if hazard is None else broken(work, hazard, save_steps)


def _spread(values: list[float]) -> Span:
    return Span(expected=values[0], low=values[1], high=values[2])


def _meets(middle: Elapsed, high: Elapsed, deadline_s: float | None) -> str | None:
    if deadline_s is None:
        return None
    if max(high.mean_s, high.late_s) <= deadline_s:
        return YES
    return LIKELY if middle.mean_s <= deadline_s else NO
