"""What a run cost, attempt by attempt, what of it was lost, and what is still to come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ftcore.report.blocks import Block, Cell, Column, Facts, Section, Table
from ftcore.report.numbers import NONE, count, duration, money, short_number
from ftcore.report.run_view import TONES, RunView
from ftcore.spec.run_cost import AttemptCost, RunCost, run_cost

LEAD = "Device-hours count each rank from its launch to its end, loading and evaluating included; the time between attempts costs nothing here."


def cost(view: RunView, *, is_over: bool) -> Section:
    """The part on cost; `is_over`: nothing more is to come."""
    # No page tells when a run will end, so that a page of the same run is the same whenever it is made.
    found = run_cost(view.record, now=0.0, is_over=is_over)
    blocks: list[Block] = [Facts(rows=tuple(_rows(view, found)))]
    if len(found.attempts) > 1:
        blocks.append(_attempts(view, found))
    return Section(title="Cost", blocks=tuple(blocks), lead=LEAD)


def _rows(view: RunView, found: RunCost) -> Iterator[tuple[str, str]]:
    totals, currency = found.totals, found.currency
    yield "device-hours", short_number(totals.device_hours)
    yield "cost", money(totals.cost, currency) if totals.cost is not None else "unknown: hardware.price_per_hour is not set"
    yield "per million supervised tokens", money(totals.cost_per_million_supervised, currency)
    yield "lost work", _lost(found)
    if found.downtime_s:
        yield "downtime", f"{duration(found.downtime_s)} between attempts"
    if found.rest is not None:
        yield "still to come", _rest(found)
    yield from _planned(view)
    yield "tokens trained on", f"{count(totals.tokens)}, of which {count(totals.supervised_tokens)} supervised"
    yield "positions computed", f"{count(totals.computed_tokens)}, padding included"
    yield "energy", f"{short_number(found.energy_kwh)} kWh" if found.energy_kwh is not None else "not told by the device"


def _planned(view: RunView) -> Iterator[tuple[str, str]]:
    planned = (view.record.memory or {}).get("forecast")
    if isinstance(planned, Mapping):
        hours, price = planned.get("device_hours"), planned.get("price")
        told = short_number(hours) if isinstance(hours, int | float) else NONE
        amount = f", {money(price, view.totals.currency)}" if isinstance(price, int | float) else ""
        yield "planned", f"{told} device-hours{amount}, for updates and evaluations alone"


def _lost(found: RunCost) -> str:
    twice = sum(each.redone_updates for each in found.attempts)
    if not twice:
        return "none: no update was trained twice"
    price = f", {money(found.lost_cost, found.currency)}" if found.lost_cost is not None else ""
    return f"{count(twice)} {'update' if twice == 1 else 'updates'} trained twice: {duration(found.lost_s)}{price}"


def _rest(found: RunCost) -> str:
    """At the speed of the newest attempt, between its fastest and its slowest part."""
    rest = found.rest
    if rest is None:
        return ""
    amount = ""
    if rest.cost is not None:
        amount = f", {money(rest.cost, found.currency)} ({money(rest.low_cost, '')} to {money(rest.high_cost, found.currency)})"
    updates = f"{count(rest.updates)} {'update' if rest.updates == 1 else 'updates'}"
    ranks = f"{count(rest.ranks)} {'rank' if rest.ranks == 1 else 'ranks'}"
    return f"{updates} on {ranks}: {duration(rest.seconds)} ({duration(rest.low_s)} to {duration(rest.high_s)}){amount}"


def _attempts(view: RunView, found: RunCost) -> Table:
    """A row a launch: what it took, and what of it was lost."""
    numbers = ("attempt", "ranks", "down before", "time", "start", "device-hours", "cost", "updates kept", "lost updates", "lost time", "lost cost")
    columns = (*(Column(name=name, is_number=True) for name in numbers), Column(name="ended"))
    price = found.totals.cost / found.totals.device_hours if found.totals.cost is not None and found.totals.device_hours else None
    return Table(name="By attempt", columns=columns, rows=tuple(_attempt(each, view, found.currency, price) for each in found.attempts))


def _attempt(each: AttemptCost, view: RunView, currency: str, price: float | None) -> tuple[str | Cell, ...]:
    lost = each.redone_updates > 0
    how = each.how_ended or (view.state if view.state != "finished" else "not told")
    return (
        count(each.number),
        count(each.ranks),
        duration(each.downtime_s) if each.downtime_s else "",
        duration(each.wall_s),
        duration(each.start_s),
        short_number(each.device_hours),
        money(each.cost, currency),
        count(each.updates),
        Cell(text=count(each.redone_updates), tone="warn") if lost else "",
        duration(each.redone_s) if lost else "",
        money(price * each.redone_s * each.ranks / 3600, currency) if lost and price is not None else "",
        Cell(text=how, tone=TONES.get(how, "")),
    )
