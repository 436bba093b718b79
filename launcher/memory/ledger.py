"""From a resolved spec and a model's shape to what each rank, node and run takes."""

from __future__ import annotations

from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.items import Item, Ledger, phase_totals
from launcher.memory.shape import ModelShape

__all__ = ["Item", "Ledger", "build_ledger"]


def build_ledger(resolved: ResolvedSpec, shape: ModelShape) -> Ledger:
    """The ledger of a run of `resolved` on a model of `shape`. What-ifs are made with dataclasses.replace on `resolved`."""
    items: list[Item] = []
    phases = phase_totals(items)
    peak = max(phases, key=lambda phase: phases[phase])
    return Ledger(
        items=tuple(items), device_peak_bytes=phases[peak], peak_phase=peak, phase_bytes=phases, parameters=shape.parameters, trained=shape.parameters
    )
