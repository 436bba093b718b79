"""Which item of the memory ledger grew: as planned, at the run's usual micro-step, and at the one where memory ran out."""

from __future__ import annotations

from launcher.findings.finding import Evidence, ItemChange
from launcher.findings.micro_steps import usual_row, widest_row
from launcher.findings.seen import Seen
from launcher.memory.activation_row import Row
from launcher.memory.fit import gib
from launcher.memory.items import Item, Ledger, held_in
from launcher.memory.ledger import build_ledger

SHOWN = 6
"""Items of a finding."""


def ledger_at(seen: Seen, row: Row | None) -> Ledger | None:
    """The ledger of the run at a micro-step; None where the model or the spec is not known, or there is no such row."""
    if seen.resolved is None or seen.shape is None or row is None:
        return None
    return build_ledger(seen.resolved, seen.shape, row, on_cpu=seen.on_cpu)


def item_changes(seen: Seen, here: Row | None) -> tuple[ItemChange, ...]:
    """The items of a rank's memory at the ledger's worst moment, those that grew most from the usual micro-step to `here` first, then the largest."""
    if seen.resolved is None or seen.shape is None:
        return ()
    planned = ledger_at(seen, widest_row(seen, seen.resolved))
    usual, now = ledger_at(seen, usual_row(seen)), ledger_at(seen, here)
    sizes = [_by_name(ledger) if ledger is not None else None for ledger in (planned, usual, now)]
    names = dict.fromkeys(name for each in sizes if each for name in each)
    changes = [
        ItemChange(
            name=name,
            predicted_bytes=(sizes[0] or {}).get(name, 0),
            usual_bytes=None if sizes[1] is None else sizes[1].get(name, 0),
            here_bytes=None if sizes[2] is None else sizes[2].get(name, 0),
        )
        for name in names
    ]
    order = sorted(changes, key=lambda each: (-each.grew_bytes, -max(each.predicted_bytes, each.here_bytes or 0)))
    return tuple(order[:SHOWN])


def growth_text(items: tuple[ItemChange, ...]) -> str:
    """Which item grew, in a line; without one that did, which are the largest."""
    grown = [each for each in items if each.grew_bytes > 0 and each.usual_bytes is not None and each.here_bytes is not None]
    if grown and grown[0].usual_bytes is not None and grown[0].here_bytes is not None:
        first = grown[0]
        times = f", {grown[0].here_bytes / grown[0].usual_bytes:.1f} times" if grown[0].usual_bytes else ""
        return f"the ledger's item that grew most: {first.name}, {gib(grown[0].usual_bytes)} at the usual micro-step, {gib(grown[0].here_bytes)} here{times}"
    largest = sorted(items, key=lambda each: -(each.here_bytes if each.here_bytes is not None else each.predicted_bytes))[:3]
    named = ", ".join(f"{each.name} {gib(each.here_bytes if each.here_bytes is not None else each.predicted_bytes)}" for each in largest)
    return f"the ledger's largest items: {named}" if named else ""


def predicted_bytes(seen: Seen, ledger: Ledger) -> int:
    """What a rank should hold at its worst moment: of its accelerator's memory, or on a host with the process itself."""
    process = sum(item.bytes for item in ledger.items if item.place == "host" and item.scope == "rank" and held_in(item, ledger.peak_phase))
    return ledger.device_peak_bytes + (process if seen.on_cpu else 0)


def measured_evidence(seen: Seen, rank: int | None, ledger: Ledger | None) -> tuple[Evidence, ...]:
    """The most that was measured of a rank (None: rank 0) beside what the ledger says."""
    lines = seen.record.ranks.get(rank, []) if rank is not None else seen.record.updates
    peaks = [(line["peak_memory_bytes"], line["update"]) for line in lines if isinstance(line.get("peak_memory_bytes"), int)]
    if not peaks:
        return ()
    peak, update = max(peaks, key=lambda each: (each[0], -each[1]))
    file = f"metrics/rank_{rank}.jsonl" if rank is not None else "metrics.jsonl"
    found = [Evidence(what=f"the most it had held: {gib(peak)}, up to update {update}", file=file)]
    if ledger is not None:
        wanted = predicted_bytes(seen, ledger)
        rest = peak - wanted
        word = f"{gib(rest)} that the ledger does not explain" if rest > 0 else f"{gib(-rest)} less than the ledger's largest micro-step takes"
        found.append(Evidence(what=f"the plan says {gib(wanted)} at the largest micro-step: {word}", file="memory.json" if seen.record.memory else ""))
    return tuple(found)


def _by_name(ledger: Ledger) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for item in filter(lambda each: _counts(each, ledger), ledger.items):
        sizes[item.name] = sizes.get(item.name, 0) + item.bytes
    return sizes


def _counts(item: Item, ledger: Ledger) -> bool:
    return item.place == "device" and item.scope == "rank" and held_in(item, ledger.peak_phase)
