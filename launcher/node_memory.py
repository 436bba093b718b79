"""How much memory a host's ranks use, seen from outside, for the report of one that the kernel killed. Standard library only, Linux."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ftcore.spec.host_memory import CGROUPS, OWN_CGROUP, available_bytes, cgroup_limit, table_bytes


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
            "limit_bytes": cgroup_limit(),
            "available_bytes": available_bytes(),
            "oom_kills": max(0, _oom_kills() - self._kills_before),
        }
        return {name: value for name, value in seen.items() if value is not None}


def resident_bytes(pid: int) -> int:
    """VmHWM of a process, the most it ever held; 0 when it can't be read."""
    return table_bytes(Path(f"/proc/{pid}/status"), "VmHWM") or 0


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
        for line in OWN_CGROUP.read_text().splitlines():
            if line.startswith("0::"):
                own = CGROUPS / line[3:].lstrip("/")
                return [folder for folder in (own, *own.parents) if folder.is_relative_to(CGROUPS)]
    return []
