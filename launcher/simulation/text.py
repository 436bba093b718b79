"""A simulation as a table."""

from __future__ import annotations

from launcher.memory.cost_text import device_hours, duration
from launcher.memory.fit import gib
from launcher.simulation.point import PHASES, SimulatedPoint, Simulation


def render_simulation(simulation: Simulation) -> str:
    """The whole simulation: what was assumed, a line a point, and what limits each."""
    head = [f"{simulation.model}, {simulation.method}, on {simulation.accelerator}, {simulation.mode} scaling"]
    rows = [_cells(point, simulation) for point in simulation.points]
    return "\n".join([*head, *("  ".join(row) for row in rows)]) + "\n"


def _cells(point: SimulatedPoint, simulation: Simulation) -> list[str]:
    phases = [f"{point.phases[name] / point.update_seconds:.0%}" for name in PHASES]
    price = f"{point.price:,.2f} {simulation.currency}" if point.price is not None else ""
    memory = f"{gib(point.fit.device_bytes)}{'' if point.fit.fits else ' does not fit'}"
    numbers = [str(point.ranks), duration(point.update_seconds), f"{point.tokens_per_s:,.0f}"]
    return [*numbers, *phases, memory, device_hours(point.device_hours), price, point.limiting]
