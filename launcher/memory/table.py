"""A plan as text: a table of what a rank holds and when, what that is held against, and how long it takes. Reads in 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from launcher.memory.accelerators import GIB
from launcher.memory.cost_text import render_forecast
from launcher.memory.fit import gib
from launcher.memory.items import GROUPS, PHASES, Item
from launcher.memory.notes import plan_notes
from launcher.memory.plan import Plan

WIDTH = 100
MIB = 2**20
_NAME, _SIZE, _WHEN = 35, 9, 6
_LEGEND = "when: l loading, i building the engine, b forward and backward, s the optimizer's step"


def render_plan(plan: Plan) -> str:
    """The whole plan."""
    parts = [_head(plan), _table(plan), _room(plan)]
    if plan.forecast is not None:
        parts.append(_wrapped(render_forecast(plan.forecast).splitlines()))
    elif plan.no_forecast:
        parts.append(_wrapped([f"time and cost: not counted: {plan.no_forecast}"]))
    parts.append(_wrapped(f"note: {note}" for note in plan_notes(plan)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(plan: Plan) -> str:
    spec, shape, ledger = plan.resolved.spec, plan.shape, plan.ledger
    hosts = len(plan.resolved.hosts)
    experts = f", {shape.experts} experts a layer, {shape.experts_per_token} used" if shape.experts else ""
    share = f"trains {ledger.trained:,} ({ledger.trained / ledger.parameters:.2%})" if ledger.frozen else "trains all of them"
    offload = [f"{name} on {device}" for name, device in (("optimizer", spec.zero.offload_optimizer), ("weights", spec.zero.offload_param)) if device != "none"]
    parts = [spec.train.precision, f"ZeRO-{spec.zero.stage}", *offload, spec.optimizer.type, f"recomputed: {spec.train.gradient_checkpointing}"]
    rows = [
        f"spec:          {plan.origin}",
        f"model:         {spec.model.model_name_or_path} ({shape.family}), {shape.parameters:,} parameters, {shape.layers} layers{experts}",
        f"method:        {spec.method.type}, {share}",
        f"run:           {plan.resolved.world_size} rank{_s(plan.resolved.world_size)} on {hosts} host{_s(hosts)}, {', '.join(parts)}",
        f"combination:   {plan.verdict.word}",
    ]
    return _wrapped([*rows, *(f"warning: {warning}" for warning in plan.verdict.warnings)])


def _table(plan: Plan) -> str:
    ledger = plan.ledger
    unit = GIB if ledger.device_peak_bytes >= GIB else MIB
    items = sorted((item for item in ledger.items if item.place == "device"), key=lambda item: GROUPS.index(item.group))
    sources = list(dict.fromkeys(item.source for item in items))
    lines = [_title("on the device of a rank", unit)]
    for group in dict.fromkeys(item.group for item in items):
        lines.append(group)
        for item in (each for each in items if each.group == group):
            lines += _row(item, unit, sources.index(item.source) + 1)
    marks = {phase: " (the peak)" if phase == ledger.peak_phase else "" for phase in PHASES}
    lines.append("in all: " + ", ".join(f"{phase} {_number(ledger.phase_bytes[phase], unit)}{marks[phase]}" for phase in PHASES))
    lines += [_LEGEND, *(f"[{number}] {source}" for number, source in enumerate(sources, start=1))]
    return "\n".join([*lines, "", *_others(ledger.items)])


def _others(items: Iterable[Item]) -> Iterator[str]:
    for place, title in (("host", "in main memory, of each rank"), ("nvme", "on NVMe, of each rank"), ("disk", "on disk, of the run")):
        chosen = [item for item in items if item.place == place]
        unit = GIB if sum(item.bytes for item in chosen) >= GIB else MIB
        if chosen:
            yield _title(title, unit)
            for item in chosen:
                yield from _row(item, unit)


def _title(what: str, unit: int) -> str:
    return f"{what:<{_NAME}}{'GiB' if unit == GIB else 'MiB':>{_SIZE}}  {'when':<{_WHEN}}how it comes about"


def _number(size: int, unit: int) -> str:
    return f"{size / unit:,.{3 if unit == GIB else 2}f}"


def _row(item: Item, unit: int, source: int = 0) -> list[str]:
    """The lines of an item: its formula runs on below itself."""
    when = "".join(phase[0] if phase in item.phases else "-" for phase in PHASES) if item.phases else "libs"
    when = "" if item.place in ("nvme", "disk") else when
    name = f"  {item.name}" + (" (rank 0)" if item.place == "host" and item.scope == "run" else "")
    left = f"{name:<{_NAME}}{_number(item.bytes, unit):>{_SIZE}}  {when:<{_WHEN}}"
    text = f"{item.formula} [{source}]" if source else item.formula
    first, *rest = textwrap.wrap(text, WIDTH - len(left)) or [""]
    return [left + first, *(" " * len(left) + line for line in rest)]


def _room(plan: Plan) -> str:
    capacity, ledger = plan.capacity, plan.ledger
    peak, there = ledger.device_peak_bytes, capacity.device_bytes
    lines = []
    if there is None:
        lines.append(f"device:        {gib(peak)} a rank; the accelerator is {capacity.device_origin}")
    else:
        name = capacity.accelerator.name if capacity.accelerator is not None else ""
        margin = plan.resolved.spec.hardware.margin
        word = "does not fit" if peak > there else "fits" if peak <= there * (1 - margin) else "fits, but leaves less than the margin"
        room = f"{gib(peak)} of {gib(there)} a rank on {name} ({capacity.device_origin}), {max(0.0, 1 - peak / there):.0%} free"
        lines.append(f"device:        {word}: {room}; hardware.margin is {margin:.0%}")
    for host, size in ledger.host_bytes.items():
        of = capacity.host_bytes.get(host)
        lines.append(
            f"main memory:   {gib(size)}{f' of {gib(of)}' if of is not None else ''} on {host}{', beside the ranks above' if capacity.is_shared else ''}"
        )
    if ledger.nvme_bytes:
        lines.append(f"NVMe:          {gib(ledger.nvme_bytes)} on a host, in {plan.resolved.spec.zero.nvme_path}")
    free = f" of {gib(capacity.disk_bytes)} free" if capacity.disk_bytes is not None else ""
    lines.append(f"disk:          {gib(ledger.disk_bytes)}{free}")
    lines += [f"{'does not fit' if each.is_error else 'warning'}: {each.what}\n    fix: {each.fix}" for each in plan.shortages]
    return _wrapped(lines)


def _wrapped(lines: Iterable[str]) -> str:
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent=" " * 15) for text in lines for line in text.splitlines())


def _s(count: int) -> str:
    return "s" if count != 1 else ""
