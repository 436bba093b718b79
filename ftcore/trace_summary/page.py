"""summary.html: the summary of a profile as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftcore.report.blocks import Block, Cell, Charts, Column, Folded, Prose, Section, Table, Tile, Tiles
from ftcore.report.charts import Axis, Layer, stacked_bars
from ftcore.report.numbers import count, duration, in_bytes, percent
from ftcore.report.page import render_page
from ftcore.trace_summary.parts import PARTS

COLOURS = {
    "compute": "phase-backward",
    "communication": "phase-communication",
    "copy": "series-4",
    "data": "phase-data_wait",
    "host_bound": "phase-idle",
    "gap": "phase-other",
}
NAMES = {"compute": "compute", "communication": "communication", "copy": "copies", "data": "data", "host_bound": "host-bound", "gap": "gaps"}
SMALL = 0.005
"""Share of the time below which a phase has no bar."""
_TOP = 12


def render_summary(summary: Mapping[str, Any]) -> str:
    """The page's text."""
    updates = summary["updates"]
    told = f"{len(updates)} updates, {updates[0]} to {updates[-1]}" if updates else "what the traces hold"
    subtitle = f"{told}; {len(summary['ranks'])} ranks profiled" + (f" of {summary['world_size']}" if summary["world_size"] else "")
    sections = (_where(summary), _advice(summary), _phases(summary), _ranks(summary), _operators(summary), _collectives(summary))
    return render_page(f"Profile {summary['run']}".strip(), [each for each in sections if each.blocks], subtitle=subtitle)


def _where(summary: Mapping[str, Any]) -> Section:
    shares, told = summary["shares"], summary["communication"]
    tiles = [
        Tile(label="an update", value=duration(summary["update_s"]), note=_slowdown(summary)),
        *(Tile(label=NAMES[part], value=percent(shares[part])) for part in PARTS),
        Tile(label="communication hidden", value=percent(told["overlap_share"]), note=f"of {duration(told['total_s'])}"),
    ]
    lead = f"Host-bound: {summary['host_bound_means']}."
    problems = tuple(Prose(text=each, tone="warn") for each in summary["problems"])
    return Section(title="Where the time goes", lead=lead, blocks=(Tiles(tiles=tuple(tiles)), *problems))


def _slowdown(summary: Mapping[str, Any]) -> str:
    slower, without = summary["profiler_slowdown"], summary["unprofiled_update_s"]
    return "" if slower is None else f"{duration(without)} without the profiler"


def _advice(summary: Mapping[str, Any]) -> Section:
    blocks: list[Block] = []
    for number, each in enumerate(summary["advice"]):
        rows = tuple((str(place), knob) for place, knob in enumerate(each["knobs"], start=1))
        table = Table(columns=(Column(name="try"), Column(name="what", is_long=True)), rows=rows, name=f"What to do about {NAMES[each['part']]}")
        blocks.append(Prose(text=f"{NAMES[each['part']].capitalize()}, {percent(each['share'])}: {each['meaning']}"))
        blocks.append(table if number == 0 else Folded(summary=f"What to do about {NAMES[each['part']]}", blocks=(table,)))
    return Section(title="What to do about it", blocks=tuple(blocks))


def _phases(summary: Mapping[str, Any]) -> Section:
    phases = summary["phases"]
    seen = {name: each for name, each in phases.items() if each["wall_s"] >= SMALL * summary["wall_s"]}
    chart = stacked_bars(
        "Phases of all profiled updates",
        [name.replace("_", " ") for name in seen],
        [Layer(name=NAMES[part], values=[each[part] for each in seen.values()], colour=COLOURS[part]) for part in PARTS],
        y=Axis(name="seconds", show=duration, from_zero=True),
        note="Means over the ranks.",
    )
    ranks = stacked_bars(
        "Ranks",
        [str(each["rank"]) for each in summary["ranks"]],
        [Layer(name=NAMES[part], values=[each["parts"][part] for each in summary["ranks"]], colour=COLOURS[part]) for part in PARTS],
        y=Axis(name="seconds", show=duration, from_zero=True),
    )
    columns = (Column(name="phase"), Column(name="wall", is_number=True), *(Column(name=NAMES[part], is_number=True) for part in PARTS))
    rows = tuple((name.replace("_", " "), duration(each["wall_s"]), *(duration(each[part]) for part in PARTS)) for name, each in phases.items())
    return Section(title="By phase and rank", blocks=(Charts(charts=(chart, ranks)), Table(columns=columns, rows=rows, name="Phases")))


def _ranks(summary: Mapping[str, Any]) -> Section:
    numbers = ("wall", *(NAMES[part] for part in PARTS), "hidden", "waiting", "peak memory")
    columns = (Column(name="rank"), Column(name="host"), *(Column(name=name, is_number=True) for name in numbers))
    uneven = summary["imbalance"] or {}
    rows = []
    for each in summary["ranks"]:
        is_slowest = each["rank"] == uneven.get("slowest_rank")
        peak = max((told["peak_bytes"] for told in each["memory"].values()), default=None)
        parts = tuple(duration(each["parts"][part]) for part in PARTS)
        told = each["communication"]
        name = Cell(text=f"{each['rank']} computes longest" if is_slowest else str(each["rank"]), tone="warn" if is_slowest else "")
        rows.append((name, each["host"], duration(each["wall_s"]), *parts, percent(told["overlap_share"]), duration(told["waiting_s"]), in_bytes(peak)))
    return Section(title="Ranks", lead=imbalance_text(uneven), blocks=(Table(columns=columns, rows=tuple(rows), name="Time of each rank"),))


def imbalance_text(uneven: Mapping[str, Any]) -> str:
    """One line; empty where there is one rank."""
    if not uneven:
        return ""
    if uneven["slowest_rank"] is None:
        return f"No rank computes longest in every update; the longest one is {percent(uneven['compute_max_over_mean'] - 1)} over the mean."
    cause = {"data": "; it was dealt more tokens", "device": "; it was dealt no more tokens than the others: its device or its host is slower", "": ""}
    excess = uneven["compute_max_over_mean"] - 1
    return f"Rank {uneven['slowest_rank']} computes longest, {percent(excess)} over the mean{cause[uneven['cause']]}."


def _operators(summary: Mapping[str, Any]) -> Section:
    on_device = bool(summary["kernels"])
    blocks = [_table(summary["operators"], "Operators", on_device=on_device)] if summary["operators"] else []
    blocks += [_table(summary["kernels"], "Kernels", on_device=True)] if on_device else []
    return Section(title="What takes longest", lead="Time in the operator itself, over all ranks.", blocks=tuple(blocks))


def _table(rows: list[dict[str, Any]], name: str, *, on_device: bool) -> Table:
    columns = (Column(name="name", is_long=True), *(Column(name=each, is_number=True) for each in ("share", "seconds", "calls")), Column(name="shapes"))
    shown = tuple(
        (
            each["name"],
            percent(each["share"]),
            duration(each["device_s"] if on_device else each["self_s"]),
            count(each["calls"]),
            each["shapes"][0]["shapes"] if each["shapes"] else "",
        )
        for each in rows[:_TOP]
    )
    return Table(columns=columns, rows=shown, name=name, note="Shapes: those that took most of it.")


def _collectives(summary: Mapping[str, Any]) -> Section:
    columns = (Column(name="collective"), Column(name="seconds", is_number=True), Column(name="calls", is_number=True))
    rows = tuple((each["name"], duration(each["seconds"]), count(each["calls"])) for each in summary["collectives"])
    return Section(title="Collectives", blocks=(Table(columns=columns, rows=rows, name="Time in collectives"),) if rows else ())
