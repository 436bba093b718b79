"""What a rank's phases are read from: the host's monotonic clock, or on an accelerator events in its queue of work."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Points in time that are taken now and read later."""

    def mark(self) -> Any:
        """This point of the rank's work."""

    def seconds(self, mark: Any) -> float:
        """When it was reached, from a beginning that all ranks of a host share; `is_past` must hold."""

    def held_up(self, mark: Any) -> float:
        """Seconds for which this thread could have run until then and got no processor, since it began; 0 where that is not known, or doesn't matter."""

    def is_past(self, mark: Any) -> bool:
        """Whether it can be read without waiting."""

    def is_aside(self) -> bool:
        """Whether what is started now stands in another queue than the rank's own work, which goes on meanwhile."""

    def finish(self) -> None:
        """Waits until every mark is past. To be called at a log alone, where the host has just waited for the losses."""

    def settle(self) -> None:
        """To be called once all marks are read, after `finish`."""


class HostClock:
    """The monotonic clock: on a CPU what is called is done on return. For the thread that makes it.

    Where processes share processors a rank may stand still for as long as it works. Linux counts that by thread (Documentation/scheduler/sched-stats.rst,
    /proc/<pid>/schedstat: time on the processor, time waiting for one, slices); a read takes about a microsecond of processor time.
    """

    def __init__(self, read: Callable[[], float] = time.perf_counter) -> None:
        self._read = read
        self._statistics = _open_statistics()

    def __del__(self) -> None:
        if self._statistics >= 0:
            os.close(self._statistics)

    def mark(self) -> tuple[float, bytes]:
        return self._read(), os.pread(self._statistics, 64, 0) if self._statistics >= 0 else b""

    def seconds(self, mark: tuple[float, bytes]) -> float:
        return mark[0]

    def held_up(self, mark: tuple[float, bytes]) -> float:
        fields = mark[1].split()
        return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0

    def is_past(self, mark: Any) -> bool:
        return True

    def is_aside(self) -> bool:
        return False

    def finish(self) -> None:
        """Nothing: what is called is done."""

    def settle(self) -> None:
        """Nothing: it never drifts from itself."""


class DeviceClock:
    """Events in the stream that this was made on. The host's own time says when work was queued there, not when it was done."""

    def __init__(self) -> None:
        self._stream = torch.cuda.current_stream()
        self.finish()
        self.settle()

    def finish(self) -> None:
        torch.cuda.synchronize()

    def settle(self) -> None:
        """Ties the device's time to the host's, so that their drift never adds up. The stream is empty: the event is reached at once."""
        self._origin_s = time.perf_counter()
        self._origin = torch.cuda.Event(enable_timing=True)
        self._origin.record(self._stream)

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def held_up(self, mark: Any) -> float:
        return 0.0

    def seconds(self, mark: Any) -> float:
        return self._origin_s + float(self._origin.elapsed_time(mark)) / 1e3

    def is_past(self, mark: Any) -> bool:
        return bool(mark.query())

    def is_aside(self) -> bool:
        return bool(torch.cuda.current_stream() != self._stream)


def _open_statistics() -> int:
    """Of this thread; -1 where the kernel keeps none."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def clock_of(device: torch.device) -> Clock:
    """The clock that tells when work on `device` is done."""
    return DeviceClock() if device.type == "cuda" else HostClock()


def host_clock_id() -> str:
    """The same on two ranks only where their monotonic clocks are one: the same boot of the same host, and the same time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        # Not Linux, or an old kernel: hosts are told apart by name, and no two containers are taken for one host.
        boot, namespace = socket.gethostname(), str(os.getpid())
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]
