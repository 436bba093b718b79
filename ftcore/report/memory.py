"""Memory: what was planned beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ftcore.report.blocks import Block, Chart, Charts, Column, Folded, Section, Table
from ftcore.report.charts import Axis, Layer, Mark, Series, line_chart, stacked_bars
from ftcore.report.curves import column, thinned, updates_of
from ftcore.report.learning import UPDATE, restarts
from ftcore.report.numbers import BYTE_UNITS, in_bytes
from ftcore.report.run_view import RunView, peak_bytes
from ftcore.spec.run_record import number

GROUP_COLOURS = {
    "weights": "phase-backward",
    "gradients": "phase-forward",
    "optimizer": "phase-optimizer",
    "activations": "phase-communication",
    "logits": "phase-idle",
    "buffers": "phase-checkpoint",
    "communication": "phase-evaluation",
    "process": "phase-other",
}
OTHER_GROUP = "phase-data_wait"
MOST_RANKS = 12


def memory(view: RunView) -> Section:
    """The part on memory."""
    items = planned_items(view)
    charts: list[Chart] = []
    if items or peak_bytes(view):
        charts.append(_planned_and_measured(view, items))
    charts += _over_time(view)
    if not charts:
        return Section(title="Memory", lead="Nothing is known of it yet.")
    blocks: list[Block] = [Charts(charts=tuple(charts))]
    if items:
        blocks.append(Folded(summary=f"The plan item by item ({len(items)})", blocks=(_item_table(items),)))
    what = "a rank's peak resident size, libraries included" if view.on_cpu else "the peak of what torch allocated on a rank's accelerator"
    return Section(title="Memory", blocks=tuple(blocks), lead=f"Measured is {what}. The plan is of the largest micro-step that the spec allows.")


def planned_items(view: RunView) -> list[Mapping[str, Any]]:
    """The items of memory.json that a measured peak holds: those of a rank, held when it holds most."""
    plan = (view.record.memory or {}).get("memory")
    items, phase = (plan.get("items"), plan.get("peak_phase")) if isinstance(plan, Mapping) else (None, None)
    own = [item for item in items if isinstance(item, Mapping) and item.get("scope") == "rank"] if isinstance(items, list) else []
    places = ("device", "host") if view.on_cpu else ("device",)
    left_out = () if view.on_cpu else ("communication", "process")
    return [item for item in own if item.get("place") in places and item.get("group") not in left_out and _is_held(item, phase)]


def _is_held(item: Mapping[str, Any], phase: Any) -> bool:
    phases = item.get("phases")
    return phase in phases if isinstance(phases, list) and phases else True


def planned_bytes(view: RunView) -> float | None:
    """Their sum; None without a plan."""
    return sum(number(dict(item), "bytes") for item in planned_items(view)) or None


def measured_by_rank(view: RunView) -> dict[int, float]:
    """Rank -> its peak."""
    found = {rank: max((number(line, "peak_memory_bytes") for line in lines), default=0.0) for rank, lines in view.record.ranks.items()}
    if not any(found.values()):
        found = {0: peak_bytes(view) or 0.0}
    return {rank: value for rank, value in found.items() if value}


def _planned_and_measured(view: RunView, items: list[Mapping[str, Any]]) -> Chart:
    groups: dict[str, float] = {}
    for item in items:
        group = str(item.get("group", "other"))
        groups[group] = groups.get(group, 0.0) + number(dict(item), "bytes")
    measured = measured_by_rank(view)
    is_many = len(measured) > MOST_RANKS
    names = {"most": max(measured.values()), "least": min(measured.values())} if is_many else {f"rank {rank}": value for rank, value in measured.items()}
    labels = [*(["planned"] if items else []), *names]
    before, blank = len(labels) - len(names), [0.0] * len(names)
    layers = [Layer(name=group, values=[*([size] * before), *blank], colour=GROUP_COLOURS.get(group, OTHER_GROUP)) for group, size in groups.items()]
    layers.append(Layer(name="measured", values=[*([0.0] * before), *names.values()], colour="series-3"))
    room = view.room_bytes
    highest = max((sum(groups.values()), *measured.values()), default=0.0)
    # A limit far above the bars would flatten them.
    limits = (Mark(x=room, name=f"what a rank can have, {in_bytes(room)}", colour="wrong"),) if math.isfinite(room) and room < 3 * highest else ()
    note = f"A rank can have {in_bytes(room)}." if math.isfinite(room) and not limits else ""
    return stacked_bars("Planned and measured", labels, layers, y=Axis(show=in_bytes, units=BYTE_UNITS, from_zero=True, limits=limits), note=note)


def _over_time(view: RunView) -> list[Chart]:
    lines, x = view.lines, updates_of(view.lines)
    named = (("peak so far", "peak_memory_bytes", "series-3"), ("allocated", "allocated_bytes", "series-1"), ("reserved", "reserved_bytes", "series-2"))
    curves = [(name, thinned(x, column(lines, key)), colour) for name, key, colour in named]
    series = [Series(name=name, x=each.x, y=each.y, low=each.low, high=each.high, colour=colour) for name, each, colour in curves if not each.is_empty]
    return (
        [line_chart("Over the run, rank 0", series, x=UPDATE, y=Axis(show=in_bytes, units=BYTE_UNITS, from_zero=True), marks=restarts(view))] if series else []
    )


def _item_table(items: list[Mapping[str, Any]]) -> Table:
    columns = (Column(name="item"), Column(name="group"), Column(name="bytes", is_number=True), Column(name="how it comes about", is_long=True))
    rows = [
        (str(item.get("name")), str(item.get("group")), in_bytes(number(dict(item), "bytes")), str(item.get("formula", "")))
        for item in sorted(items, key=lambda item: -number(dict(item), "bytes"))
    ]
    return Table(columns=columns, rows=tuple(rows))
