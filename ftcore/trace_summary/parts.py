"""What a rank did at each moment of the profiled updates: one part for each moment, so that the parts sum to the wall time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ftcore.spec.trace_ranges import PHASE_RANGES
from ftcore.trace_summary.collectives import exchanges
from ftcore.trace_summary.intervals import NONE, Intervals, complement, first_layer, segments, total, union, within
from ftcore.trace_summary.recorded import COMMUNICATION, COMPUTE, COPY, Recorded

PARTS = ("compute", "communication", "copy", "data", "host_bound", "gap")
"""communication and copy: while nothing computes. data: waiting for the next update's data. host_bound, on an accelerator: idle because the
host had not launched the next kernel yet; on a CPU: the training thread is in a phase of the update and runs no operator. gap: the rest."""
OUTSIDE = "other"
"""The phase of what is in none that the training names."""
PHASES = (*PHASE_RANGES, OUTSIDE)

# What has no namespace is a function of autograd. All of these may hold Python, hooks among it, which may wait for another rank: what they compute is in the
# operators inside them.
_WRAPPER = re.compile(r"autograd::engine::|torch::autograd::|c10d::|(?!.*::)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The profiled time of one trace, divided."""

    window: Intervals
    """Sorted and disjoint; from the first update's begin to the last one's end, or all that was recorded."""
    table: npt.NDArray[np.float64]
    """[PHASES, PARTS] seconds; its sum is the window's."""
    communication_s: float
    """Moments with a collective going on, hidden behind computing or not."""
    overlapped_s: float
    """Those of them while something computes as well."""
    computed_s: dict[int, float]
    """By update, the seconds of computing."""

    @property
    def wall_s(self) -> float:
        return total(self.window) / 1e6


def divide(recorded: Recorded) -> Division:
    """Divides one trace."""
    window = window_of(recorded)
    phases = _phases(recorded)
    compute, communication, copies = _on_device(recorded) if recorded.on_device else _on_host(recorded)
    busy = union(np.concatenate([compute, communication, copies]))
    data = phases[PHASE_RANGES.index("data_wait")]
    waits = _late_launches(recorded, busy, window) if recorded.on_device else _in_phases(phases, window)
    cut = segments(window, [compute, communication, copies, data, waits, *phases, *_launched_in(recorded, phases)])
    part, seconds = first_layer(cut.inside[:5]), cut.seconds
    host_phase = first_layer(cut.inside[5 : 5 + len(phases)])
    launched = first_layer(cut.inside[5 + len(phases) :])
    # What a device does belongs to the phase that asked for it, which the host may have left by then.
    phase = np.where((part <= 2) & (launched < len(phases)), launched, host_phase) if recorded.on_device else host_phase
    table = np.zeros((len(PHASES), len(PARTS)))
    np.add.at(table, (phase, part), seconds)
    middles = cut.bounds.mean(axis=1)
    of_updates = {number: within(middles, np.array([span])) for number, span in recorded.updates.items()}
    return Division(
        window=window,
        table=table,
        communication_s=float(seconds[cut.inside[1]].sum()),
        overlapped_s=float(seconds[cut.inside[1] & cut.inside[0]].sum()),
        computed_s={number: float(seconds[cut.inside[0] & inside].sum()) for number, inside in of_updates.items()},
    )


def window_of(recorded: Recorded) -> Intervals:
    """The profiled time. A device that is still at work when the last update's call returns has not ended it."""
    if recorded.updates:
        start, end = min(each[0] for each in recorded.updates.values()), max(each[1] for each in recorded.updates.values())
        return np.array([[start, end]])
    spans = [each.intervals for each in (recorded.operators, recorded.kernels, recorded.collectives) if len(each)]
    if not spans:
        return NONE
    everything = np.concatenate(spans)
    return np.array([[everything[:, 0].min(), everything[:, 1].max()]])


def _phases(recorded: Recorded) -> list[Intervals]:
    """By PHASE_RANGES; disjoint from each other, since the training is in one at a time."""
    names, numbers = np.array(recorded.ranges.names), recorded.names.of
    return [union(recorded.ranges.intervals[names == numbers[phase]]) if phase in numbers and len(names) else NONE for phase in PHASE_RANGES]


def _on_device(recorded: Recorded) -> tuple[Intervals, Intervals, Intervals]:
    kinds, spans = np.array(recorded.kernels.threads), recorded.kernels.intervals
    compute, communication, copies = (union(spans[kinds == kind]) for kind in (COMPUTE, COMMUNICATION, COPY))
    return compute, communication, copies


def _on_host(recorded: Recorded) -> tuple[Intervals, Intervals, Intervals]:
    """Operators of the threads that train, and collectives that these asked for."""
    operators = recorded.operators
    names = recorded.names.things
    computes = {number for number, name in enumerate(names) if isinstance(name, tuple) and _WRAPPER.match(name[0]) is None}
    threads = training_threads(recorded)
    chosen = np.array([name in computes and thread in threads for name, thread in zip(operators.names, operators.threads, strict=True)], dtype=bool)
    return union(operators.intervals[chosen]) if len(operators) else NONE, union(exchanges(recorded, threads).intervals), NONE


def training_threads(recorded: Recorded) -> set[int]:
    """Threads whose operators are the training's: where the updates' ranges are, and autograd's own. All, where a trace names neither."""
    engine = {number for number, name in enumerate(recorded.names.things) if isinstance(name, tuple) and name[0].startswith("autograd::engine::")}
    found = {thread for name, thread in zip(recorded.operators.names, recorded.operators.threads, strict=True) if name in engine}
    if recorded.training_thread is not None:
        found.add(recorded.training_thread)
    return found or set(recorded.operators.threads)


def _in_phases(phases: Sequence[Intervals], window: Intervals) -> Intervals:
    """On a CPU: the phases that train; the whole window where the trace names none."""
    named = [phases[PHASE_RANGES.index(phase)] for phase in ("forward", "backward", "optimizer")]
    return union(np.concatenate(named)) if any(len(each) for each in named) else window


def _late_launches(recorded: Recorded, busy: Intervals, window: Intervals) -> Intervals:
    """Idle moments of the device before the launch of the kernel that ends them had returned, and those after its last kernel."""
    gaps = complement(busy, window)
    starts = np.array(recorded.kernels.starts)
    order = np.argsort(starts, kind="stable")
    index = np.searchsorted(starts[order], gaps[:, 1])
    ends = gaps[:, 1].copy()
    for row, place in enumerate(index.tolist()):
        if place < len(order):
            launch = recorded.launches.get(int(recorded.launched_at[order[place]]))
            # A kernel whose launch is not told was launched in time, as far as anybody knows.
            ends[row] = min(gaps[row, 1], launch[1]) if launch is not None else gaps[row, 0]
    return union(np.stack([gaps[:, 0], ends], axis=1))


def _launched_in(recorded: Recorded, phases: Sequence[Intervals]) -> list[Intervals]:
    """What the device did for each phase: kernels by the moment of their launch."""
    if not recorded.on_device:
        return [NONE for _ in phases]
    spans = recorded.kernels.intervals
    launches = zip(recorded.launched_at, recorded.kernels.starts, strict=True)
    moments = np.array([recorded.launches.get(int(number), (start, start))[0] for number, start in launches])
    return [union(spans[within(moments, phase)]) for phase in phases]
