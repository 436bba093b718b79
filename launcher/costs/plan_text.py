"""Plans as a terminal shows them. Reads in 100 columns, but for lines to copy."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence, Set

from launcher.costs.copy_line import Asked, copy_line
from launcher.costs.planner import LIKELY, NO, SPOT, YES, Plan
from launcher.costs.planning import Planning
from launcher.memory.cost_text import amount as shown_amount
from launcher.memory.cost_text import device_hours, rough_time

WIDTH = 100
HEAD = ("ranks", "stage", "market", "time", "low - high", "90 % by", "device-hours", "price", "low - high", "deadline")
HOW_HEAD = ("ranks", "market", "hosts", "how, tokens a micro-step", "save_steps", "a million")
NUMBERS = {0, 1, 3, 4, 5, 6, 7, 8}
"""Columns that stand to the right."""
HOW_NUMBERS = {0, 2, 4, 5}
_UNIT, _NO_BREAK = re.compile(r"(?<=\d) (?=(?:d|h|min|s|ranks?|hosts?|[A-Z]{3})\b)"), "\u00a0"
"""No line breaks between a number and what it is of."""
UNITS = ((86400, "d", 4 * 86400), (3600, "h", 5400), (60, "min", 90))
"""Seconds, name, and the seconds from which on a unit is used."""


def render_planning(planning: Planning, asked: Asked, *, everything: bool = False) -> str:
    """The best plan with a line to copy, a table of the others, and what was assumed; `everything`: each stage, not only the best of a number of ranks."""
    rows = planning.plans if everything else _best_of_each(planning.plans)
    head = f"{planning.origin}\n{planning.model} on {planning.accelerator}, {planning.gpus_per_node} a host\n"
    unfit = [f"{each.ranks} ranks do not fit: {each.why}" for each in planning.unfit]
    currency = planning.terms.prices.currency
    plans = table([_head(HEAD, currency), *(_row(plan) for plan in rows)], NUMBERS)
    hows = table([_head(HOW_HEAD, currency), *(_how(plan) for plan in rows)], HOW_NUMBERS)
    left = len(planning.plans) - len(rows)
    notes = [f"{left} more plans in other ZeRO stages: --all"] if left else []
    notes += [*unfit, *planning.notes, *formulas(planning)]
    return "\n".join([head, *verdict(planning, asked), "", plans, "", hows, "", *wrapped(notes)])


def wrapped(lines: Sequence[str], indent: int = 2) -> list[str]:
    """Lines of at most WIDTH columns; what a line goes on with is indented. A word that is longer stays whole."""
    kept = [_UNIT.sub(_NO_BREAK, line) for line in lines]
    parts = [part for line in kept for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)]
    return [part.replace(_NO_BREAK, " ") for part in parts]


def verdict(planning: Planning, asked: Asked) -> list[str]:
    """What is best, or what to do if nothing meets the deadline."""
    best, deadline = planning.best, planning.terms.deadline_s
    command, hint = copy_line(best, asked)
    what = "cheapest" if best.price is not None else "fastest"
    if deadline is None:
        lines = [f"The {what} plan: {describe(best, planning)}"]
    elif best.meets == YES:
        lines = [f"The {what} plan that meets {rough_time(deadline)}: {describe(best, planning)}"]
    elif best.meets == LIKELY:
        chance = f"No plan meets {rough_time(deadline)} for sure. The {what} that is expected to: {describe(best, planning)}"
        lines = [chance, f"It may take up to {rough_time(best.late_s.high)}: give it that, or measure its speed (ftlaunch pilot, --measured) to know better."]
    else:
        lines = [f"No plan meets {rough_time(deadline)}. The fastest: {describe(best, planning)}"]
        lines += [_advice(planning)]
    return [*wrapped(lines), f"    {command}", *([f"    {hint}"] if hint else [])]


def _advice(planning: Planning) -> str:
    best = planning.best
    more = f"give it {rough_time(best.late_s.high)}" if math.isfinite(best.late_s.high) else "take hosts that are interrupted less often"
    ranks = 2 * max(plan.candidate.ranks for plan in planning.plans)
    return f"What to do: {more}, weigh more ranks (--ranks {ranks}) or a faster accelerator (--gpu), or train less."


def describe(plan: Plan, planning: Planning) -> str:
    """A plan in a line."""
    chosen = plan.candidate
    where = "spot hosts" if plan.market == SPOT else "on demand"
    late = f", 9 of 10 runs by {_time(plan.late_s.expected)}" if plan.market == SPOT else ""
    price = f", {money(plan.price.expected, planning.terms.prices.currency)}" if plan.price is not None else ""
    hosts = f" ({chosen.hosts} host{'s' if chosen.hosts > 1 else ''})"
    return f"{chosen.ranks} rank{'s' if chosen.ranks > 1 else ''}{hosts}, {where}, {chosen.label}: {_time(plan.time_s.expected)}{late}{price}"


def formulas(planning: Planning) -> list[str]:
    """How spot times come about, where there are any."""
    spot = next((plan for plan in planning.plans if plan.market == SPOT), None)
    if spot is None:
        return ["save_steps: the spec's, or what holds up training by 1 % at most"] if any(plan.as_written_s for plan in planning.plans) else []
    terms = planning.terms
    rate = f"{terms.prices.interruptions_per_day:g} a day and host"
    lost = "nothing is lost, for each comes with notice enough to save" if terms.has_notice else "the work since the last save is lost"
    stops = "goes on without the host (--elastic)" if terms.elastic else "stops all ranks until the host is replaced"
    lines = [f"interruptions: {rate}, a Poisson process; each {stops}, and {lost}"]
    if not terms.has_notice:
        lines.append("save_steps: the spec's; by Young and Daly, sqrt(2 · a save · time between interruptions), where the spec's takes over 1 % longer")
    if math.isfinite(spot.interruptions):
        where = f"on {spot.candidate.ranks} rank{'s' if spot.candidate.ranks > 1 else ''}"
        lines.append(f"{where} that is {spot.interruptions:.2g} interruptions and {rough_time(spot.lost_s)} of work done twice, on average")
    return lines


def money(amount: float, currency: str) -> str:
    """12,345 USD; 1.23 USD; small amounts to two digits; `-` for what never ends."""
    return f"{shown_amount(amount)} {currency}" if math.isfinite(amount) else "-"


def table(rows: Sequence[Sequence[str]], right: Set[int]) -> str:
    """Columns as wide as what stands in them, those of `right` to the right. Columns that are empty but for their head are left out."""
    kept = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    widths = {at: max(len(row[at]) for row in rows) for at in kept}
    lines = ["  ".join(row[at].rjust(widths[at]) if at in right else row[at].ljust(widths[at]) for at in kept) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _best_of_each(plans: Sequence[Plan]) -> list[Plan]:
    """The first plan of each number of ranks and market; `plans` are best first."""
    found: dict[tuple[int, str], Plan] = {}
    for plan in plans:
        found.setdefault((plan.candidate.ranks, plan.market), plan)
    return list(found.values())


def _head(names: Sequence[str], currency: str) -> list[str]:
    return [f"{name} {currency}" if name in ("price", "a million") else name for name in names]


def _amount(number: float) -> str:
    return money(number, "").strip()


def _row(plan: Plan) -> tuple[str, ...]:
    """How long a plan takes and what it costs."""
    words = {YES: "met", LIKELY: "likely", NO: "missed", None: ""}
    return (
        str(plan.candidate.ranks),
        str(plan.candidate.stage),
        plan.market,
        _time(plan.time_s.expected),
        span(plan.time_s.low, plan.time_s.high),
        _time(plan.late_s.expected) if plan.market == SPOT else "",
        device_hours(plan.device_hours.expected) if plan.price is None and math.isfinite(plan.device_hours.expected) else "",
        _amount(plan.price.expected) if plan.price is not None else "",
        _amounts(plan.price.low, plan.price.high) if plan.price is not None else "",
        words[plan.meets],
    )


def _how(plan: Plan) -> tuple[str, ...]:
    """What is run, in a table of its own: together they are too wide for a terminal."""
    chosen = plan.candidate
    return (
        str(chosen.ranks),
        plan.market,
        str(chosen.hosts),
        chosen.label.removesuffix(" tokens a micro-step") + ("" if chosen.origin == "simulated" else f" ({chosen.origin})"),
        f"{plan.save_steps:,}",
        _amount(plan.per_million) if plan.per_million is not None else "",
    )


def _amounts(low: float, high: float) -> str:
    """Two amounts, whole ones from 100 on."""
    return f"{low:,.0f} - {high:,.0f}" if 100 <= high < math.inf else f"{_amount(low)} - {_amount(high)}"


def span(low: float, high: float) -> str:
    """Two durations in the unit that suits the longer one: 11 - 17 min, 3.0 - 3.5 h."""
    if not math.isfinite(high):
        return ""
    size, unit = next(((size, unit) for size, unit, least in UNITS if high >= least), (1, "s"))
    digits = 0 if high >= 20 * size else 1
    return f"{low / size:.{digits}f} - {high / size:.{digits}f} {unit}"


def _time(seconds: float) -> str:
    return rough_time(seconds) if math.isfinite(seconds) else "never ends"
