"""What a run computes for nothing, how small its micro-steps are, and whether its hosts have cores and memory for its ranks."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections import Counter

from ftcore.spec.run_record import number
from launcher.findings.finding import NOTE, SLOW, Evidence, Finding, Knob
from launcher.findings.seen import Seen, middle
from launcher.memory.choices import apply, choice_of
from launcher.memory.fit import gib
from launcher.memory.ledger import build_ledger

PADDING = 0.10
"""Share of the computed positions that hold no token from which on it is told of."""
LOW_FILL = 0.5
"""Share of micro_batch_tokens below which several micro-steps an update are small ones."""
FULL = 0.95
"""Share of the room of a rank from which on its peak is a warning."""


def work_findings(seen: Seen) -> list[Finding]:
    """Padding, small micro-steps, more ranks than cores, and memory that is nearly full."""
    found = (_padding(seen), _small(seen), _crowded(seen), _nearly_full(seen))
    return [each for each in found if each is not None]


def _padding(seen: Seen) -> Finding | None:
    lines = seen.steady()
    held, computed = (sum(number(line, key) for line in lines) for key in ("tokens", "computed_tokens"))
    share = 1 - held / computed if computed > 0 else 0.0
    if share < PADDING:
        return None
    padded = seen.resolved is not None and seen.resolved.spec.batch.layout == "padded"
    packed = Knob(options="--set batch.layout=packed", gives=f"up to {share:.0%} less to compute", costs="the model must keep packed samples apart")
    wide, filler = "batch.layout: padded computes each micro-step as wide as its longest sample", "filler rows: some ranks have fewer micro-steps to do"
    return Finding(
        kind="padding",
        severity=SLOW,
        what=f"{share:.0%} of what is computed is padding",
        weight=share,
        causes=(wide if padded else filler,),
        evidence=(Evidence(what=f"{held:,.0f} tokens in {computed:,.0f} computed positions", file="metrics.jsonl"),),
        knobs=(packed,) if padded else (),
    )


def _small(seen: Seen) -> Finding | None:
    """Several micro-steps an update, while a rank has memory for larger ones by its ledger."""
    if seen.resolved is None or seen.shape is None:
        return None
    lines, budget = seen.steady(), seen.resolved.spec.batch.micro_batch_tokens
    steps = middle(number(line, "micro_steps") for line in lines)
    room = _room(seen)
    if steps < 4 or not room:
        return None
    own, best, size = choice_of(seen.resolved.spec), 0, budget
    peak = 0
    while size * 2 <= budget * steps:
        size *= 2
        ledger = build_ledger(changed := apply(seen.resolved, dataclasses.replace(own, micro_batch_tokens=size)), seen.shape, on_cpu=seen.on_cpu)
        if ledger.device_peak_bytes > room * (1 - changed.spec.hardware.margin):
            break
        best, peak = size, ledger.device_peak_bytes
    if not best:
        return None
    return Finding(
        kind="small_micro_steps",
        severity=SLOW if not seen.on_cpu else NOTE,
        what=f"an update takes {steps:g} micro-steps of at most {budget:,} tokens, and a rank has room for {best:,} by the ledger",
        weight=0.1,
        evidence=(Evidence(what=f"median {steps:g} micro-steps an update", file="metrics.jsonl"), Evidence(what=f"{gib(room)} for a rank", file="memory.json")),
        knobs=(
            Knob(
                options=f"--set batch.micro_batch_tokens={best}",
                gives=f"{budget / best:.2g} times as many micro-steps; fewer, larger ones use a device better",
                costs=f"{gib(peak)} on a rank by the ledger",
                may_resume=True,
            ),
        ),
    )


def _crowded(seen: Seen) -> Finding | None:
    """More ranks on this machine than it has cores, where they compute on it; other hosts' cores are not recorded."""
    if seen.resolved is None or not seen.on_cpu or not seen.record.updates:
        return None
    ranks = Counter[str]()
    for host in seen.resolved.hosts:
        ranks[host.name] += host.slots
    here = ("localhost", "127.0.0.1", socket.gethostname())
    cores = len(os.sched_getaffinity(0))
    name = next((each for each in ranks if each in here and ranks[each] > cores), None)
    if name is None:
        return None
    return Finding(
        kind="oversubscribed",
        severity=SLOW,
        what=f"{ranks[name]} ranks compute on {name}, which has {cores} cores: they take turns",
        host=name,
        weight=1 - cores / ranks[name],
        causes=("ranks that compute on their host need a core each",),
        evidence=(Evidence(what=f"{ranks[name]} slots", file="resolved.json"), Evidence(what=f"{cores} cores on this machine", file="")),
        knobs=(Knob(options=f"--set cluster.slots={cores}", gives="a core for each rank; the samples of an update stay the same", may_resume=True),),
    )


def _nearly_full(seen: Seen) -> Finding | None:
    """The peak of a rank is near its room, or the ranks of a host hold more than it has, so that it swaps."""
    room = _room(seen)
    peaks = {each: max((int(number(line, "peak_memory_bytes")) for line in lines), default=0) for each, lines in seen.record.ranks.items()}
    rank = max(peaks, key=lambda each: peaks[each], default=None)
    if rank is None or not room or peaks[rank] < FULL * room:
        return None
    risk = "the host may swap" if seen.on_cpu else "a longer micro-step may not fit"
    return Finding(
        kind="memory_nearly_full",
        severity=NOTE,
        what=f"rank {rank} has held {gib(peaks[rank])} of the {gib(room)} that a rank has: {risk}",
        rank=rank,
        evidence=(Evidence(what=f"peak {gib(peaks[rank])}", file=f"metrics/rank_{rank}.jsonl"), Evidence(what=f"room {gib(room)}", file="memory.json")),
    )


def _room(seen: Seen) -> int:
    capacity = (seen.record.memory or {}).get("capacity")
    return int(number(capacity, "device_bytes")) if isinstance(capacity, dict) else 0
