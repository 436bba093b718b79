"""What the kernel says of memory, for both sides of the contract. Standard library only, Linux."""

from __future__ import annotations

import contextlib
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
_UNLIMITED = 2**60
"""Bytes; what cgroups call no limit is a number beyond it."""


def available_bytes() -> int | None:
    """Free memory of the host; None when it can't be read."""
    return table_bytes(Path("/proc/meminfo"), "MemAvailable")


def room_bytes() -> int | None:
    """What processes here can still take: free memory of the host, or the control group's limit where that is lower; None when neither is known."""
    return min((size for size in (available_bytes(), cgroup_limit()) if size is not None), default=None)


def table_bytes(path: Path, key: str) -> int | None:
    """The size that a file of /proc gives for `key`; None where it can't be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return None


def cgroup_limit(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int | None:
    """The lowest memory limit, in bytes, of the control groups that the file `own` (as /proc/self/cgroup) names below `root`; None without one."""
    limits = []
    with contextlib.suppress(OSError):
        for line in own.read_text(encoding="ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            top, file = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
            group = top / path.lstrip("/")
            # In a container the path may be the host's, of which only the top is there.
            for folder in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):
                    limits.append(int((folder / file).read_text(encoding="ascii")))
                if folder == top:
                    break
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)
