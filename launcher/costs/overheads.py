"""What a run takes beside training: its start, its saves and its export; measured, given, or assumed and said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftcore.spec.resolved import ResolvedSpec
from launcher.costs.candidates import Candidate
from launcher.costs.measured import MeasuredSpeed
from launcher.memory.cost_text import rough_time
from launcher.memory.disk import checkpoint_bytes
from launcher.memory.layout import BYTES, model_layout
from launcher.memory.ledger import build_ledger
from launcher.memory.shape import ModelShape

START_S = 120.0
"""Assumed: libraries, preparation from the cache, ranks meeting; without reading the model."""
WAIT_S = 300.0
"""Assumed: until another spot host stands in for one that was taken away."""
STORE_BANDWIDTH = 1e9
"""Assumed: bytes a second that a host reads from, or writes to, the file system that all hosts share."""
LEAST_STALL_S = 0.03
"""What a save holds up at least: ranks agree on it, files are opened (docs/benchmarks.md, saving)."""
COPY_BANDWIDTH = 5e9
"""Assumed: bytes a second that a rank copies to its host's memory; what is not written when the next step comes is copied first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTimes:
    """Seconds that the command line says; None: nothing."""

    start_s: float | None = None
    save_s: float | None = None
    wait_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes that a run reads and writes, whatever its ranks."""

    model: int
    """The base, as it is read; each host reads all of it."""
    checkpoint: int
    """Written by all hosts together."""
    exported: int
    """Written by one."""
    saves_async: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Seconds of a run on some number of hosts."""

    start_s: float
    """From the launch to the first update."""
    write_s: float
    """From a save's begin to where it counts."""
    stall_s: float
    """What of it holds up training."""
    export_s: float


def sizes_of(resolved: ResolvedSpec, shape: ModelShape) -> Sizes:
    """The sizes of a run's files."""
    ledger = build_ledger(resolved, shape)
    exported = sum(item.bytes for item in ledger.items if item.name == "the exported model")
    return Sizes(
        model=shape.parameters * BYTES[str(resolved.spec.model.dtype)],
        checkpoint=checkpoint_bytes(model_layout(resolved.spec, shape), resolved.spec),
        exported=exported,
        saves_async=resolved.spec.checkpoint.save_async,
    )


def overheads_of(sizes: Sizes, way: Candidate, given: GivenTimes, measured: Sequence[MeasuredSpeed]) -> Overheads:
    """The overheads of one way to run."""
    starts, stalls, writes = (_known(measured, name) for name in ("start_s", "stall_s", "write_s"))
    assumed = START_S + sizes.model / STORE_BANDWIDTH
    write_s = given.save_s if given.save_s is not None else max(writes, default=sizes.checkpoint / (STORE_BANDWIDTH * way.hosts))
    # Until the next step comes, a save in the background is free.
    unwritten = max(0.0, 1 - way.update_s / write_s) if write_s > 0 else 0.0
    copied = LEAST_STALL_S + unwritten * sizes.checkpoint / (COPY_BANDWIDTH * way.ranks)
    stall_s = max(stalls) if stalls and given.save_s is None else copied if sizes.saves_async else write_s
    return Overheads(
        start_s=given.start_s if given.start_s is not None else max(starts, default=assumed),
        write_s=write_s,
        stall_s=stall_s,
        export_s=sizes.exported / STORE_BANDWIDTH,
    )


def overhead_notes(sizes: Sizes, given: GivenTimes, measured: Sequence[MeasuredSpeed], *, spot: bool, wait_s: float) -> list[str]:
    """Where the overheads are from, a line each; `spot`: what interruptions cost as well."""
    starts, writes = _known(measured, "start_s"), _known(measured, "write_s")
    rate = f"{STORE_BANDWIDTH / 1e9:g} GB/s a host"
    if given.start_s is not None:
        start = f"start: {rough_time(given.start_s)} (--start-time)"
    elif starts:
        start = f"start: {rough_time(max(starts))}, measured"
    else:
        start = f"start: {rough_time(START_S)} and reading {sizes.model / 1e9:.3g} GB at {rate}, assumed (--start-time, or --measured RUN)"
    if given.save_s is not None:
        save, where = rough_time(given.save_s), "--save-time"
    elif writes:
        save, where = rough_time(max(writes)), "measured"
    else:
        save = f"{rough_time(sizes.checkpoint / STORE_BANDWIDTH)} on one host"
        where = f"{sizes.checkpoint / 1e9:.3g} GB at {rate}, assumed (--save-time, or --measured RUN)"
    beside = "beside training" if sizes.saves_async else "while training waits (checkpoint.save_async: false)"
    notes = [start, f"a save: {save}, {beside}: {where}", f"export: {rough_time(sizes.exported / STORE_BANDWIDTH)} at {rate}, assumed"]
    if spot:
        notes.append(f"a new spot host: {rough_time(wait_s)}, {'--wait-time' if given.wait_s is not None else 'assumed (--wait-time)'}")
    return notes


def _known(measured: Sequence[MeasuredSpeed], name: str) -> list[float]:
    return [getattr(speed, name) for speed in measured if getattr(speed, name) is not None]
