"""From an update's parts to a point with its rates, its memory, its whole run and its price."""

from __future__ import annotations

import dataclasses

from launcher.memory.capacity import Capacity
from launcher.memory.cost import evaluation_seconds, updates_of
from launcher.memory.fit import shortages
from launcher.simulation.anchor import nearest
from launcher.simulation.limiting import limiting
from launcher.simulation.point import Fit, SimulatedPoint
from launcher.simulation.setting import Setting
from launcher.simulation.timing import Timed, is_of, tied, timed
from launcher.simulation.uncertainty import half_width


def point_of(setting: Setting, ranks: int, stage: int) -> SimulatedPoint:
    """One point; its speedup is its ranks until it is set against another (see launcher.simulation.sweep)."""
    found, anchor, is_measured = timed(setting, ranks, stage), None, False
    if setting.anchors:
        anchor = nearest(setting.anchors, ranks, stage)
        found, is_measured = tied(setting, found, anchor), is_of(setting, anchor, ranks, stage)
    resolved, dealt, update, portion = found.resolved, found.dealt, found.update, found.portion
    nodes, total, lengths = len(resolved.hosts), found.total_s, setting.data.train
    sent, on_cpu = update.communication_s / total, setting.accelerator.is_host
    measured_on = anchor.ranks if anchor else None
    off = half_width(ranks=ranks, anchor_ranks=measured_on, communication_share=sent, on_cpu=on_cpu, is_measured=is_measured)
    updates = updates_of(resolved, lengths)
    evaluations = evaluation_seconds(resolved, setting.data.evaluated_tokens / max(1.0, portion.tokens), update, updates)
    run_s = updates * total + evaluations
    hours, price = run_s * ranks / 3600, resolved.spec.hardware.price_per_hour
    phases = {
        "compute": update.compute_s + update.memory_s,
        "launch": update.launch_s,
        "communication": update.communication_s,
        "idle": found.idle_s,
        "offload": update.offload_s,
    }
    return SimulatedPoint(
        ranks=ranks,
        nodes=nodes,
        stage=stage,
        samples=portion.samples,
        tokens=portion.tokens,
        micro_steps=dealt.micro_steps,
        update_seconds=total,
        low_s=total * (1 - off),
        high_s=total * (1 + off),
        tokens_per_s=portion.tokens / total,
        supervised_tokens_per_s=portion.tokens * lengths.supervised_share / total,
        speedup=float(ranks),
        efficiency=1.0,
        mfu=found.ideal_s / total,
        phases=phases,
        limiting=limiting(phases, accelerator=setting.accelerator, nodes=nodes, idle_ranks=dealt.idle_ranks, ranks=ranks),
        fit=_fit(setting, found),
        updates=updates,
        total_s=run_s,
        device_hours=hours,
        price=None if price is None else price * hours,
    )


def _fit(setting: Setting, found: Timed) -> Fit:
    accelerator, resolved = setting.accelerator, found.resolved
    host_bytes = {host.name: resolved.spec.hardware.host_memory for host in resolved.hosts}
    room = accelerator.usable_bytes // (resolved.hosts[0].slots if accelerator.is_host else 1)
    capacity = Capacity(accelerator=accelerator, device_bytes=room, device_origin="by its data sheet", host_bytes=host_bytes, disk_bytes=None)
    short = shortages(resolved, found.ledger, capacity)
    lacking = [each for each in short if each.is_error]
    return Fit(
        device_bytes=found.ledger.device_peak_bytes,
        room_bytes=room,
        fits=not lacking,
        lacks="; ".join(each.what for each in lacking or short),
    )


def set_against(point: SimulatedPoint, reference: SimulatedPoint) -> SimulatedPoint:
    """The point with its speedup and efficiency against another one of the same simulation."""
    speedup = reference.ranks * point.tokens_per_s / reference.tokens_per_s
    return dataclasses.replace(point, speedup=speedup, efficiency=speedup / point.ranks)
