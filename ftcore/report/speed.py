"""How fast a run was, and where its time went: throughput, phases by rank and over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ftcore.report.blocks import Block, Cell, Chart, Charts, Column, Prose, Section, Table
from ftcore.report.charts import Axis, Layer, Series, histogram, line_chart, stacked_bars
from ftcore.report.curves import as_number, column, thinned, updates_of
from ftcore.report.headline import first_cause
from ftcore.report.learning import UPDATE, restarts
from ftcore.report.numbers import NONE, TIME_UNITS, count, duration, percent, share_tick, time_tick
from ftcore.report.phase_times import PHASE_NAMES, RankTimes, has_phases, over_time, rank_times
from ftcore.report.run_view import RunView
from ftcore.spec.run_record import covered

TOLD = 0.15
"""Share of the others' time from which a rank that they waited for is named."""
MOST_LISTED = 16
"""Ranks in the table; the slowest ones where there are more."""
OLDER = "This run was recorded before phases were: communication and waiting for other ranks stand in backward and other."


def speed(view: RunView) -> Section:
    """The part on speed."""
    if not view.lines:
        return Section(title="Speed", lead="There is nothing to show yet.")
    blocks: tuple[Block, ...] = (Charts(charts=tuple(_rates(view))), *_slow_ranks(view))
    return Section(title="Speed", blocks=blocks, lead="Of the updates alone; all ranks together.")


def _slow_ranks(view: RunView) -> tuple[Table, ...]:
    """Each slow rank that was named while the run went on, the newest ones where they are many."""
    found = [event for event in view.record.events if event["event"] == "finding" and event.get("kind") == "slow_rank"]
    if not found:
        return ()
    columns = (
        *(Column(name=name, is_number=name != "host") for name in ("update", "rank", "host")),
        Column(name="slow in"),
        Column(name="others wait", is_number=True),
        Column(name="what to do", is_long=True),
    )
    rows = [
        (
            count(as_number(event.get("update"))),
            *(str(event.get(key, NONE)) for key in ("rank", "host")),
            PHASE_NAMES.get(str(event.get("phase")), str(event.get("phase", NONE))),
            percent(as_number(event.get("share"))),
            first_cause(event.get("causes")) or str(event.get("what") or ""),
        )
        for event in found[-MOST_LISTED:]
    ]
    note = f"The last {MOST_LISTED} of {len(found)}." if len(found) > MOST_LISTED else ""
    return (Table(name="Slow ranks that the run named", columns=columns, rows=tuple(rows), note=note),)


def _rates(view: RunView) -> Iterator[Chart]:
    lines, x = view.lines, updates_of(view.lines)
    named = (("all tokens", "tokens_per_s", "series-1"), ("supervised tokens", "supervised_tokens_per_s", "series-2"))
    curves = [(name, thinned(x, column(lines, key)), colour) for name, key, colour in named]
    series = [Series(name=name, x=each.x, y=each.y, low=each.low, high=each.high, colour=colour) for name, each, colour in curves if not each.is_empty]
    yield line_chart("Throughput", series, x=UPDATE, y=Axis(name="tokens/s", from_zero=True, caps=True), marks=restarts(view))
    seconds = thinned(x, column(lines, "seconds"))
    own = Series(name="", x=seconds.x, y=seconds.y, low=seconds.low, high=seconds.high, colour="series-3")
    yield line_chart("Time of an update", [own], x=UPDATE, y=Axis(show=time_tick, units=TIME_UNITS, from_zero=True, caps=True), marks=restarts(view))
    mfu = thinned(x, column(lines, "mfu"))
    if not mfu.is_empty:
        one = Series(name="", x=mfu.x, y=mfu.y, low=mfu.low, high=mfu.high, colour="series-4")
        yield line_chart("Model flops utilisation", [one], x=UPDATE, y=Axis(show=share_tick, from_zero=True), marks=restarts(view))


def where_time_went(view: RunView) -> Section:
    """The part on phases."""
    title = "Where the time went"
    if not view.lines:
        return Section(title=title, lead="There is nothing to show yet.")
    ranks, known = rank_times(view), has_phases(view.lines)
    lead = "Idle is waiting inside a collective for a rank that came later; communication is the rest of it." if known else OLDER
    blocks: list[Block] = [Charts(charts=(_over_time(view), *([by_rank(ranks)] if ranks else []), phase_table(view)))]
    if known and ranks and len(ranks) > 1:
        blocks += _late(view, ranks)
    return Section(title=title, blocks=tuple(blocks), lead=lead)


def layers_of(values: Mapping[str, Sequence[float]]) -> tuple[Layer, ...]:
    """Phase -> values, as layers in their own colours; without phases that took no time."""
    return tuple(Layer(name=PHASE_NAMES[name], values=each, colour=f"phase-{name}") for name, each in values.items() if any(each))


def by_rank(ranks: Sequence[RankTimes]) -> Chart:
    """A bar a rank."""
    values = {name: [each.seconds[name] / max(1, each.updates) for each in ranks] for name in PHASE_NAMES}
    y = Axis(name="mean of an update", show=time_tick, units=TIME_UNITS, from_zero=True)
    return stacked_bars("By rank", [str(each.rank) for each in ranks], layers_of(values), y=y, x=Axis(name="rank"), wide=len(ranks) > MOST_LISTED)


def _over_time(view: RunView) -> Chart:
    edges, values = over_time(view.lines)
    y = Axis(name="an update, mean over ranks", show=time_tick, units=TIME_UNITS, from_zero=True)
    return histogram("Over the run", edges, layers_of(values), x=UPDATE, y=y, wide=True)


def phase_table(view: RunView) -> Table:
    """The sums."""
    seconds = view.phase_seconds
    whole = sum(seconds.values()) or 1.0
    updates = max(1, sum(covered(line).updates for line in view.lines))
    columns = (Column(name="phase"), *(Column(name=name, is_number=True) for name in ("share", "an update", "altogether")))
    rows = [
        (Cell(text=PHASE_NAMES[name], mark=f"phase-{name}"), percent(value / whole), duration(value / updates), duration(value))
        for name, value in sorted(seconds.items(), key=lambda item: -item[1])
        if value or has_phases(view.lines)
    ]
    return Table(name="Mean over ranks", columns=columns, rows=tuple(rows))


def _late(view: RunView, ranks: Sequence[RankTimes]) -> Iterator[Block]:
    """Who made the others wait."""
    shares = {each.rank: each.caused_idle_s / each.others_s if each.others_s > 0 else 0.0 for each in ranks}
    listed = sorted(ranks, key=lambda each: -shares[each.rank])[:MOST_LISTED] if len(ranks) > MOST_LISTED else ranks
    columns = (
        *(Column(name=name, is_number=name == "rank") for name in ("rank", "host")),
        *(Column(name=name, is_number=True) for name in ("own computing, an update", "waited, an update", "others waited, an update", "of their time")),
        Column(name="late in"),
    )
    rows = []
    for each in listed:
        updates = max(1, each.updates)
        computing = sum(each.seconds[name] for name in ("forward", "backward", "optimizer")) / updates
        times = (duration(computing), duration(each.seconds["idle"] / updates), duration(each.caused_idle_s / updates), percent(shares[each.rank]))
        rows.append((str(each.rank), each.host, *times, PHASE_NAMES.get(each.late_phase, each.late_phase)))
    note = f"The {MOST_LISTED} of {len(ranks)} ranks that others waited for longest." if len(ranks) > MOST_LISTED else ""
    yield Table(name="Who waited for whom", columns=columns, rows=tuple(rows), note=note)
    worst = max(ranks, key=lambda each: shares[each.rank])
    if shares[worst.rank] > TOLD:
        named = f"Rank {worst.rank}" + (f" on {worst.host}" if worst.host else "")
        phase = PHASE_NAMES.get(worst.late_phase, worst.late_phase)
        what = f"{named} made each other rank wait for {percent(shares[worst.rank])} of the time"
        yield Prose(text=f"{what}, mostly while in {phase}." if phase else f"{what}.", tone="warn")
