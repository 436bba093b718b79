"""A simulation as text: what was counted with, a table of the points, where their time goes, and what limits each. Reads in 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from launcher.memory.cost_text import amount, device_hours, rough_time
from launcher.memory.fit import gib
from launcher.simulation.point import PHASES, SimulatedPoint, Simulation

WIDTH = 100
SHORT = {"compute": "compute", "launch": "launch", "communication": "network", "idle": "idle", "offload": "offload"}


def render_simulation(simulation: Simulation) -> str:
    """The whole simulation; nothing in it was run."""
    points = simulation.points
    has_stages = len({point.stage for point in points}) > 1
    names = [_name(point, has_stages=has_stages) for point in points]
    parts = [
        _head(simulation),
        _table(_speed_rows(simulation, names)),
        "of an update's time:\n" + _table(_phase_rows(points, names)),
        "to run it:\n" + _table(_need_rows(simulation, names)),
        "limited by:\n" + _table([[name, point.limiting] for name, point in zip(names, points, strict=True)], left=2),
        _memory(points, names),
        _wrapped([f"assumed: {note}" for note in simulation.notes]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _name(point: SimulatedPoint, *, has_stages: bool) -> str:
    return f"{point.ranks}" + (f" stage {point.stage}" if has_stages else "")


def _head(simulation: Simulation) -> str:
    first = simulation.points[0]
    fewest = f"{first.ranks} rank{'s' if first.ranks > 1 else ''}"
    grows = "the update stays" if simulation.mode == "strong" else f"the update of {fewest} grows with the ranks"
    rows = [
        ("simulated", f"{simulation.origin}: {simulation.model}, {simulation.method}; nothing was run"),
        ("on", f"{simulation.accelerator}, up to {simulation.gpus_per_node} a host, {simulation.network} between hosts"),
        ("mode", f"{simulation.mode}: {grows}; speedup against {fewest}, counted as {first.ranks}"),
        ("tied to", simulation.anchor),
        ("dealt", simulation.deal),
        ("band", simulation.band),
    ]
    return _wrapped([f"{name + ':':<11}{text}" for name, text in rows])


def _speed_rows(simulation: Simulation, names: Sequence[str]) -> list[list[str]]:
    rows = [["ranks", "hosts", "samples", "an update", "band", "tokens/s", "speedup", "eff.", "MFU"]]
    for name, point in zip(names, simulation.points, strict=True):
        cells = [name, f"{point.nodes}", f"{point.samples:,.0f}", rough_time(point.update_seconds), _band(point), f"{point.tokens_per_s:,.0f}"]
        rows.append([*cells, f"{point.speedup:.1f}", f"{point.efficiency:.0%}", f"{point.mfu:.0%}"])
    return rows


def _need_rows(simulation: Simulation, names: Sequence[str]) -> list[list[str]]:
    """The whole run's time, what it costs, and the memory of a rank."""
    has_price = any(point.price is not None for point in simulation.points)
    price = [f"price {simulation.currency}"] if has_price else []
    rows = [["ranks", "whole run", "device-h", *price, "memory", "of"]]
    for name, point in zip(names, simulation.points, strict=True):
        room = gib(point.fit.room_bytes) if point.fit.room_bytes is not None else "?"
        marks = "" if point.fit.fits else "  does not fit"
        amounts = [amount(point.price or 0.0)] if has_price else []
        rows.append([name, rough_time(point.total_s), device_hours(point.device_hours), *amounts, gib(point.fit.device_bytes), room + marks])
    return rows


def _band(point: SimulatedPoint) -> str:
    """low-high, the unit once where it is the same."""
    low, high = rough_time(point.low_s), rough_time(point.high_s)
    is_same = low.split(" ")[1:] == high.split(" ")[1:] and low.count(" ") == 1
    return f"{low.split(' ')[0]}-{high}" if is_same else f"{low} - {high}"


def _phase_rows(points: Sequence[SimulatedPoint], names: Sequence[str]) -> list[list[str]]:
    shown = [name for name in PHASES if any(point.phases[name] > 0 for point in points)]
    rows = [["ranks", *(SHORT[name] for name in shown), "micro-steps"]]
    for name, point in zip(names, points, strict=True):
        shares = [f"{point.phases[each] / point.update_seconds:.1%}" for each in shown]
        rows.append([name, *shares, f"{point.micro_steps:.3g}"])
    return rows


def _memory(points: Sequence[SimulatedPoint], names: Sequence[str]) -> str:
    """What is short, a line for points that lack the same."""
    lines: dict[str, list[str]] = {}
    for name, point in zip(names, points, strict=True):
        if point.fit.lacks:
            lines.setdefault(point.fit.lacks, []).append(name)
    return _wrapped([f"{', '.join(where)}: {text}" for text, where in lines.items()])


def _table(rows: Sequence[Sequence[str]], left: int = 0) -> str:
    """Columns as wide as their widest cell, to the right but for the first `left` ones."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [cell.ljust(width) if index < left else cell.rjust(width) for index, (cell, width) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in rows)


def _wrapped(lines: Sequence[str]) -> str:
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="           ", break_long_words=False, break_on_hyphens=False) for line in lines)
