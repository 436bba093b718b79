"""From a resolved spec and a model's shape to what each rank, node and run takes."""

from __future__ import annotations

from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.activation_row import Row, largest_row
from launcher.memory.activations import activation_items
from launcher.memory.buffers import buffer_items
from launcher.memory.disk import disk_items
from launcher.memory.host import host_items, node_bytes
from launcher.memory.items import Item, Ledger, phase_totals
from launcher.memory.layout import model_layout
from launcher.memory.shape import ModelShape
from launcher.memory.states import count_states, state_items
from launcher.memory.traced import Traced, traced_items
from launcher.memory.transients import gather_items, transient_items
from launcher.memory.zero_settings import zero_settings

__all__ = ["Item", "Ledger", "build_ledger"]


def build_ledger(resolved: ResolvedSpec, shape: ModelShape, row: Row | None = None, *, on_cpu: bool = False, traced: Traced | None = None) -> Ledger:
    """The ledger of a run of `resolved` on a model of `shape`, at its largest micro-step: `row`, or the largest that the spec allows, all supervised.

    `on_cpu`: the ranks compute on the host, where there is no NCCL and the loss takes smaller blocks. `traced`: the trace of that
    micro-step, in place of formulas for what it saves. What-ifs are made with dataclasses.replace on
    `resolved`.
    """
    spec, row = resolved.spec, row or largest_row(resolved, on_cpu=on_cpu)
    settings, layout = zero_settings(resolved), model_layout(spec, shape)
    states = count_states(layout, settings, spec)
    buffers = buffer_items(layout, settings, shape, on_cpu=row.on_cpu)
    activations = list(traced_items(traced, resolved, row)) if traced is not None else activation_items(resolved, shape, row)
    gathered = sum(item.bytes for item in buffers if item.name == "gathered weights")
    items = [
        *state_items(layout, settings, spec),
        *buffers,
        *transient_items(layout, settings, states),
        *activations,
        *gather_items(resolved, shape, row, activations, layout, settings, gathered),
        *host_items(layout, settings, states, resolved, on_cpu=row.on_cpu),
        *disk_items(layout, spec),
    ]
    phases = phase_totals(items)
    peak = max(phases, key=lambda phase: phases[phase])
    most = max(host.slots for host in resolved.hosts)
    return Ledger(
        items=tuple(items),
        device_peak_bytes=phases[peak],
        peak_phase=peak,
        phase_bytes=phases,
        host_bytes=node_bytes(items, resolved),
        nvme_bytes=most * sum(item.bytes for item in items if item.place == "nvme"),
        disk_bytes=sum(item.bytes for item in items if item.place == "disk"),
        parameters=layout.parameters,
        trained=layout.trained,
    )
