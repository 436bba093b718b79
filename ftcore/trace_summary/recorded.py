"""What the summary needs of one trace: sorted out of its events, as plain lists of numbers."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ftcore.spec.trace_ranges import PHASE_RANGES, RANGE_PREFIX, UPDATE_RANGE
from ftcore.trace_summary.events import TraceFile
from ftcore.trace_summary.intervals import Intervals

COMPUTE, COMMUNICATION, COPY = range(3)
"""Kinds of what a device does."""

_UPDATE = re.compile(re.escape(RANGE_PREFIX + UPDATE_RANGE) + r" (\d+)$")
_COMMUNICATION_KERNEL = re.compile(r"nccl|rccl", re.IGNORECASE)
_HOST_COLLECTIVE = re.compile(r"(gloo|mpi|ucc):")
_SYNCHRONISING = re.compile(r"(cuda|hip)(Stream|Device|Event)Synchronize$|cuCtxSynchronize$")
_COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")


@dataclass(slots=True)
class Spans:
    """Many named stretches of time, kept small."""

    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    names: array[int] = field(default_factory=lambda: array("l"))
    """Numbers of the names."""
    threads: array[int] = field(default_factory=lambda: array("l"))
    links: array[int] = field(default_factory=lambda: array("l"))
    """For an operator its external id, for a kernel that of its operator; -1: none."""

    def add(self, event: dict[str, Any], name: int, thread: int, link: int = -1) -> None:
        start = float(event["ts"])
        end = start + max(0.0, float(event.get("dur", 0.0)))
        # First what may be refused: a link that is no such number leaves nothing of the event.
        self.links.append(link)
        self.starts.append(start)
        self.ends.append(end)
        self.names.append(name)
        self.threads.append(thread)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def intervals(self) -> Intervals:
        """[n, 2], in the order they were added."""
        return np.stack([np.array(self.starts), np.array(self.ends)], axis=1) if len(self.starts) else np.empty((0, 2))


@dataclass(slots=True)
class Numbered:
    """Numbers for things that come again and again."""

    of: dict[Any, int] = field(default_factory=dict)

    def number(self, thing: Any) -> int:
        """The same for equal things, from 0."""
        return self.of.setdefault(thing, len(self.of))

    @property
    def things(self) -> list[Any]:
        """By number."""
        return list(self.of)


@dataclass(slots=True)
class Recorded:
    """One trace of one rank. Times in microseconds since an origin of the trace's own."""

    names: Numbered = field(default_factory=Numbered)
    """Of an operator a tuple (name, shapes), of all else a text."""
    threads: Numbered = field(default_factory=Numbered)
    operators: Spans = field(default_factory=Spans)
    kernels: Spans = field(default_factory=Spans)
    """What ran on an accelerator; `threads` holds its kind."""
    launched_at: array[float] = field(default_factory=lambda: array("d"))
    """For each kernel the correlation number of the call that launched it; -1: none is told."""
    launches: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Start and end of the host's call, by correlation number."""
    synchronised: Spans = field(default_factory=Spans)
    """Calls in which the host waits for the device."""
    collectives: Spans = field(default_factory=Spans)
    """What a thread of the host did for a collective (gloo)."""
    ranges: Spans = field(default_factory=Spans)
    """Phases, as the training named them."""
    updates: dict[int, tuple[float, float]] = field(default_factory=dict)
    training_thread: int | None = None
    """Where the updates' ranges are; None: the trace has none."""
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By device: bytes allocated, the first value told and the largest one."""

    @property
    def on_device(self) -> bool:
        """Whether an accelerator worked."""
        return len(self.kernels) > 0


def record(file: TraceFile) -> Recorded:
    """Reads a trace to its end; what is wrong with it is in `file.problems`."""
    found = Recorded()
    sorters: dict[str, Callable[[dict[str, Any], Recorded], None]] = {
        "cpu_op": _operator,
        "operator": _operator,
        "user_annotation": _annotation,
        "kernel": _kernel,
        "cuda_runtime": _runtime,
        "cuda_driver": _runtime,
        "runtime": _runtime,
        "cpu_instant_event": _memory,
        **dict.fromkeys(_COPIES, _copy),
    }
    for event in file.events():
        sorter = sorters.get(str(event.get("cat", "")).lower())
        if sorter is None:
            continue
        try:
            sorter(event, found)
        except (KeyError, TypeError, ValueError, OverflowError):
            # An event that is not as torch writes it tells nothing.
            continue
    return found


def _thread(event: dict[str, Any], found: Recorded) -> int:
    return found.threads.number((event.get("pid"), event.get("tid")))


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _operator(event: dict[str, Any], found: Recorded) -> None:
    if event.get("ph") != "X":
        return
    args = _args(event)
    name = found.names.number((str(event["name"]), _shapes(args.get("Input Dims"))))
    found.operators.add(event, name, _thread(event, found), int(args.get("External id", -1)))


def _shapes(dims: Any) -> str:
    """`[8,128]×[128]` of what the operator was given; empty where nothing is told."""
    if not isinstance(dims, list):
        return ""
    shown = [f"[{','.join(map(str, shape))}]" for shape in dims if isinstance(shape, list) and shape and not isinstance(shape[0], list)]
    return "×".join(shown[:3])


def _annotation(event: dict[str, Any], found: Recorded) -> None:
    if event.get("ph") != "X":
        return
    name = str(event["name"])
    update = _UPDATE.match(name)
    if update is not None:
        start = float(event["ts"])
        found.updates[int(update[1])] = (start, start + float(event["dur"]))
        found.training_thread = _thread(event, found)
    elif name.startswith(RANGE_PREFIX) and (phase := name.removeprefix(RANGE_PREFIX)) in PHASE_RANGES:
        found.ranges.add(event, found.names.number(phase), _thread(event, found))
    elif _HOST_COLLECTIVE.match(name):
        found.collectives.add(event, found.names.number(name), _thread(event, found))


def _kernel(event: dict[str, Any], found: Recorded) -> None:
    name = str(event["name"])
    _on_device(event, found, COMMUNICATION if _COMMUNICATION_KERNEL.search(name) else COMPUTE)


def _copy(event: dict[str, Any], found: Recorded) -> None:
    _on_device(event, found, COPY)


def _on_device(event: dict[str, Any], found: Recorded, kind: int) -> None:
    if event.get("ph") != "X":
        return
    args = _args(event)
    correlation, link = float(args.get("correlation", -1)), int(args.get("External id", args.get("external id", -1)))
    found.kernels.add(event, found.names.number(str(event["name"])), kind, link)
    found.launched_at.append(correlation)


def _runtime(event: dict[str, Any], found: Recorded) -> None:
    if event.get("ph") != "X":
        return
    name, start = str(event["name"]), float(event["ts"])
    correlation = _args(event).get("correlation")
    if correlation is not None:
        found.launches[int(correlation)] = (start, start + float(event.get("dur", 0.0)))
    if _SYNCHRONISING.search(name):
        found.synchronised.add(event, found.names.number(name), _thread(event, found))


def _memory(event: dict[str, Any], found: Recorded) -> None:
    args = _args(event)
    if event.get("name") != "[memory]" or "Total Allocated" not in args:
        return
    device = "cpu" if int(args.get("Device Type", 0)) == 0 else f"device {args.get('Device Id', 0)}"
    total = int(args["Total Allocated"])
    first, largest = found.memory.get(device, (total, total))
    found.memory[device] = (first, max(largest, total))
