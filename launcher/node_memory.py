"""How much memory a host's ranks use, seen from outside, for the report of one that the kernel killed. Standard library only, Linux."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_CGROUP = Path("/sys/fs/cgroup")


class MemoryWatch:
    """The largest resident size that was seen of each process, and what the kernel says of the memory around it."""

    def __init__(self) -> None:
        self._largest: dict[int, int] = {}
        """pid -> bytes."""
        self._kills_before = _oom_kills()

    def look(self, pids: Iterable[int]) -> None:
        """Notes what the processes use now; reads one small file for each."""
        for pid in pids:
            resident = resident_bytes(pid)
            if resident:
                self._largest[pid] = max(resident, self._largest.get(pid, 0))

    def of(self, pid: int) -> dict[str, Any]:
        """For the event of a rank's end: resident_bytes, limit_bytes (of the control group), available_bytes (of the host), oom_kills since the start."""
        seen = {
            "resident_bytes": self._largest.get(pid),
            "limit_bytes": _limit_bytes(),
            "available_bytes": _available_bytes(),
            "oom_kills": max(0, _oom_kills() - self._kills_before),
        }
        return {name: value for name, value in seen.items() if value is not None}


def resident_bytes(pid: int) -> int:
    """VmHWM of a process, the most it ever held; 0 when it can't be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _available_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _limit_bytes() -> int | None:
    """memory.max of the control group or one above it, the least; None without a limit."""
    limits = []
    for folder in _control_groups():
        with contextlib.suppress(OSError, ValueError):
            limits.append(int((folder / "memory.max").read_text()))
    return min(limits, default=None)


def _oom_kills() -> int:
    """Processes that the kernel has killed for memory in the control group of this one."""
    for folder in _control_groups():
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split() for line in (folder / "memory.events").read_text().splitlines())
            return int(counts.get("oom_kill", "0"))
    return 0


def _control_groups() -> list[Path]:
    """The control group (version 2) of this process and those above it, innermost first."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = _CGROUP / line[3:].lstrip("/")
                return [folder for folder in (own, *own.parents) if folder.is_relative_to(_CGROUP)]
    return []
