"""What happened to a run and when: attempts, checkpoints, evaluations, findings; on a time axis and as tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ftcore.report.blocks import Block, Cell, Charts, Column, Folded, Section, Table
from ftcore.report.curves import as_number
from ftcore.report.numbers import NONE, count, duration, money, short_number
from ftcore.report.run_view import TONES, RunView
from ftcore.report.timeline import Lane, Span, timeline
from ftcore.spec.run_record import Attempt, Line, number

MOST_EVENTS = 400
"""In the table: the first half and the last half of them."""
_OWN_FIELDS = ("event", "time", "attempt", "update", "rank", "host")
_LANES = (
    ("checkpoints", ("checkpoint",), "series-3"),
    ("evaluations", ("evaluation",), "series-4"),
    ("findings", ("finding",), "series-5"),
    ("faults", ("error", "failed_update", "save_failed", "overflow"), "wrong"),
)
"""What the points of the time axis stand for: name, kinds of events, colour."""


def happenings(view: RunView) -> Section:
    """The part on what happened."""
    blocks: list[Block] = []
    chart = _time_axis(view)
    if chart is not None:
        blocks.append(Charts(charts=(chart,)))
    if view.attempts:
        blocks.append(attempt_table(view))
    if view.record.events:
        kinds = Counter(str(event["event"]) for event in view.record.events)
        told = ", ".join(f"{times} {kind.replace('_', ' ')}" for kind, times in kinds.most_common())
        blocks.append(Folded(summary=f"All {count(len(view.record.events))} events: {told}", blocks=(_event_table(view),)))
    return Section(title="What happened", blocks=tuple(blocks), lead="" if blocks else "Nothing was written down yet.")


def _time_axis(view: RunView) -> Any:
    started = [each.started for each in view.attempts if each.started > 0]
    if not started:
        return None
    first = min(started)
    ends = {each.number: each.started + each.wall_s for each in view.attempts}
    spans = [
        Span(start=each.started - first, end=ends[each.number] - first, colour="series-1" if _ended_well(each) else "wrong", name=f"{each.number}")
        for each in view.attempts
        if each.started > 0
    ]
    lanes = [Lane(name="attempts", spans=tuple(spans))]
    for name, kinds, colour in _LANES:
        times = [number(event, "time") for event in view.record.events if event["event"] in kinds and number(event, "time") > 0]
        # A host's clock may be behind that of the launch, or was set back.
        places = sorted({max(0.0, round(time - first, 3)) for time in times})
        if places:
            lanes.append(Lane(name=name, points=tuple(places), colour=colour))
    return timeline("On the clock", lanes, note=f"From {_clock(first)} on. Blue attempts ended well or go on, red ones did not.")


def _ended_well(attempt: Attempt) -> bool:
    return attempt.how_ended in ("finished", "preempted", "")


def attempt_table(view: RunView) -> Table:
    """A row a launch, with its rates, which no time between launches is part of, and its cost."""
    numbers = ("attempt", "ranks", "from update", "updates", "redone", "time", "device-hours", "tokens/s", "supervised/s", "cost")
    columns = (Column(name="began"), *(Column(name=name, is_number=True) for name in numbers), Column(name="ended"), Column(name="why", is_long=True))
    price = view.totals.cost / view.totals.device_hours if view.totals.cost is not None and view.totals.device_hours else None
    rows: list[tuple[str | Cell, ...]] = []
    for each in view.attempts:
        cost = money(price * each.device_s / 3600, view.totals.currency) if price is not None else NONE
        how = each.how_ended or (view.state if view.state != "finished" else "not told")
        rows.append(
            (
                _clock(each.started),
                *(count(value) for value in (each.number, each.world_size, each.first_update, each.updates, each.redone_updates)),
                duration(each.wall_s),
                short_number(each.device_s / 3600),
                count(each.tokens_per_s),
                count(each.supervised_tokens_per_s),
                cost,
                Cell(text=how, tone=TONES.get(how, "")),
                each.reason if each.how_ended != "finished" else "",
            )
        )
    return Table(name="Attempts", columns=columns, rows=tuple(rows))


def _event_table(view: RunView) -> Table:
    events, half = view.record.events, MOST_EVENTS // 2
    chosen = events if len(events) <= MOST_EVENTS else [*events[:half], *events[-half:]]
    named = [Column(name=name, is_number=name in ("attempt", "update")) for name in ("time", "attempt", "event", "update")]
    columns = (*named, Column(name="what", is_long=True))
    note = f"The first and the last {half}; all are in events.jsonl." if len(events) > MOST_EVENTS else ""
    return Table(columns=columns, rows=tuple(_event_row(event) for event in chosen), note=note)


def _event_row(event: Line) -> tuple[str | Cell, ...]:
    kind = str(event["event"])
    tone = "wrong" if kind in ("error", "save_failed", "failed_update") else "warn" if kind in ("finding", "restart", "overflow", "preempted") else ""
    update, attempt = event.get("update"), event.get("attempt")
    return (
        _clock(number(event, "time")),
        count(as_number(attempt)) if attempt is not None else "",
        Cell(text=kind.replace("_", " "), tone=tone),
        count(as_number(update)) if update is not None else "",
        "; ".join(_fields(event)),
    )


def _fields(event: Mapping[str, Any]) -> Iterator[str]:
    """What an event says beside its time and kind."""
    for key in ("rank", "host"):
        if event.get(key) not in (None, ""):
            yield f"{key} {event[key]}"
    if isinstance(event.get("problems"), list):
        yield from (str(each.get("what")) for each in event["problems"] if isinstance(each, Mapping))
    for key, value in event.items():
        if key in _OWN_FIELDS or key in ("problems", "traceback", "causes", "exit_status", "lost_peer") or value in (None, "", [], {}):
            continue
        yield f"{key.replace('_', ' ')} {_shown(value)}" if key not in ("what", "text", "reason") else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        return text if len(text) <= 300 else f"{text[:299]}…"
    return short_number(value) if isinstance(value, float) else count(value)


def _clock(time: float) -> str:
    """UTC, to the second."""
    if not math.isfinite(time) or not 0 < time < 32503680000:
        return NONE
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
